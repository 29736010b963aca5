"""Target: small requests to a server that are no load: discovery, metrics, resets."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TIMEOUT_S = 10.0
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # as the load goes


class NoAnswer(Exception):
    """No HTTP answer came; the text says why."""


@dataclass(frozen=True)
class Answer:
    """An HTTP answer, whatever its status."""

    status: int
    text: str

    def json(self) -> Any:
        """The body as JSON; raises `NoAnswer` when it is none."""
        try:
            return json.loads(self.text)
        except ValueError:
            raise NoAnswer(f"the answer is no JSON: {self.text[:80]!r}") from None

    @property
    def reason(self) -> str:
        """What the server says went wrong, in one short line."""
        try:
            said = json.loads(self.text)
            said = said.get("error", said) if isinstance(said, dict) else said
            message = said.get("message", said) if isinstance(said, dict) else said
        except ValueError:
            message = self.text
        return " ".join(str(message).split())[:200]


def get(url: str, headers: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> Answer:
    """A GET; raises `NoAnswer`."""
    return _send(urllib.request.Request(url, headers=dict(headers)), timeout_s)


def post(
    url: str, body: object, headers: Mapping[str, str], timeout_s: float = TIMEOUT_S
) -> Answer:
    """A POST of JSON; raises `NoAnswer`."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(
        url, data, {**headers, "Content-Type": "application/json"}, method="POST"
    )
    return _send(request, timeout_s)


def _send(request: urllib.request.Request, timeout_s: float) -> Answer:
    try:
        with _DIRECT.open(request, timeout=timeout_s) as answer:
            return Answer(answer.status, answer.read().decode("utf-8", "replace"))
    except urllib.error.HTTPError as refused:
        with refused:
            return Answer(refused.code, refused.read().decode("utf-8", "replace"))
    except urllib.error.URLError as error:
        raise NoAnswer(str(error.reason)) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoAnswer(str(error) or type(error).__name__) from None
