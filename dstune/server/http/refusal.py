"""What a client is told when it gets no answer: OpenAI's error object, its status and headers.

Raised while a request is read or admitted, and sent as an event where a stream has begun. A leaf
of the HTTP skin.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from types import MappingProxyType

LONGEST_ECHO = 80  # characters of a client's own text that an error repeats
CLIENT_FAULT = "invalid_request_error"


class Refusal(Exception):
    """A request that gets an error object instead of tokens.

    `param` names the parameter at fault, `code` is OpenAI's machine-readable word where it has
    one, `kind` the error's `type`.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        *,
        kind: str = CLIENT_FAULT,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.kind = kind
        self.headers = headers

    def body(self) -> bytes:
        """The JSON document, the same for a response and for an event of a stream."""
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }
        return json.dumps({"error": error}).encode()


def bad_request(message: str, param: str | None = None, code: str | None = None) -> Refusal:
    """400: the request cannot be carried out as written."""
    return Refusal(400, message, param, code)


def bad_value(param: str, what: str) -> Refusal:
    """400: one parameter has a value that is not allowed; `what` completes "<param> ..."."""
    return Refusal(400, f"{param} {what}", param, "invalid_value")


def unauthorized() -> Refusal:
    """401: no key, or not the key."""
    message = "missing or wrong API key: send 'Authorization: Bearer KEY'"
    headers = {"WWW-Authenticate": "Bearer"}
    return Refusal(401, message, None, "invalid_api_key", headers=headers)


def model_not_found(asked: str, served: str) -> Refusal:
    """404: another model than the one served."""
    message = f"the model {shown(asked)} is not served here; this server serves {served!r}"
    return Refusal(404, message, "model", "model_not_found")


def no_such_route(method: str, path: str) -> Refusal:
    """404: nothing is served under this path."""
    return Refusal(404, f"unknown route: {method[:20]} {shown(path)}", None, "unknown_url")


def wrong_method(method: str, path: str, allowed: str) -> Refusal:
    """405: the path exists, for another method."""
    message = f"{path} does not take {method[:20]}; use {allowed}"
    return Refusal(405, message, None, "method_not_supported", headers={"Allow": allowed})


def body_too_large(limit_bytes: int) -> Refusal:
    """413: the body is larger than the server reads; the connection ends with it."""
    message = f"the request body is larger than {limit_bytes} bytes"
    return Refusal(413, message, None, "body_too_large", headers={"Connection": "close"})


def rate_limited(retry_after_s: float) -> Refusal:
    """429: more requests per second than the server was told to take."""
    message = f"rate limit reached; try again in {retry_after_s:.3g} s"
    headers = _retry_after(retry_after_s)
    return Refusal(
        429, message, None, "rate_limit_exceeded", kind="rate_limit_error", headers=headers
    )


def internal() -> Refusal:
    """500: the server's own fault; what happened is in its log, not in the answer."""
    return Refusal(500, "internal error", None, "internal_error", kind="server_error")


def queue_full(max_waiting: int, retry_after_s: float) -> Refusal:
    """503: the bounded queue has no room."""
    message = f"{max_waiting} requests are waiting already; try again later"
    headers = _retry_after(retry_after_s)
    return Refusal(503, message, None, "queue_full", kind="overloaded_error", headers=headers)


def shutting_down(retry_after_s: float) -> Refusal:
    """503: the server takes no new requests, or ends one that did not finish in time."""
    headers = {**_retry_after(retry_after_s), "Connection": "close"}
    message = "the server is shutting down"
    return Refusal(503, message, None, "shutting_down", kind="server_error", headers=headers)


def engine_gone() -> Refusal:
    """503: the process that computes has died."""
    return Refusal(503, "the engine has stopped", None, "engine_stopped", kind="server_error")


def deadline_passed(timeout_s: float) -> Refusal:
    """504: no complete answer within the time that the request or the server allows."""
    message = f"the request did not finish within {timeout_s:g} s"
    return Refusal(504, message, None, "deadline_exceeded", kind="timeout_error")


def shown(text: str) -> str:
    """A client's text as an error may repeat it: short, quoted, control characters escaped."""
    kept = text if len(text) <= LONGEST_ECHO else text[:LONGEST_ECHO] + "..."
    return repr(kept)


def _retry_after(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}
