"""What a request must pass before any route sees it: key, encoding, rate, size, and time.

Plain ASGI, in front of the whole app. The body is read here, bounded while it comes in, and the
app gets it in one piece.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable

from dstune.server.http.answers import refusal_start
from dstune.server.http.logs import App, Message, Receive, Send, note
from dstune.server.http.options import ServerOptions
from dstune.server.http.rate import AdaptiveBucket
from dstune.server.http.refusal import Refusal, body_too_large, rate_limited, unauthorized

OPEN_PATHS = frozenset({"/health"})  # without a key, never limited
LINGER_S = 1.0  # a refused upload goes on for so long at most, so that its client reads why
LINGER_BYTES = 16 << 20


class Limits:
    """The checks in front of an app; `load` tells how full the server is, from 0 to 1."""

    def __init__(
        self,
        app: App,
        options: ServerOptions,
        load: Callable[[], float],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._options = options
        self._load = load
        self._now_s = now_s
        self._key = None if options.api_key is None else options.api_key.encode()
        rate = options.rate_limit_per_s
        self._bucket = None if rate is None else AdaptiveBucket(rate, now_s())

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Refuses the request, or passes it on with its body."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # there are no web sockets here; the server closes them
        try:
            self._check_head(scope)
            body = await self._read(receive)
        except Refusal as refusal:
            note(scope, error=refusal.code)
            await _refuse(refusal, receive, send)
            return
        if body is None:
            return  # the client hung up
        await self._app(scope, _replayed(body, receive), send)

    def _check_head(self, scope: Message) -> None:
        if scope["path"] in OPEN_PATHS:
            return
        headers = scope["headers"]
        if self._key is not None and not _has_key(headers, self._key):
            raise unauthorized()
        if scope["method"] != "POST":
            return
        for name, value in headers:
            # a small body may unpack to a huge one
            if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
                raise _compressed()
            if name == b"content-length" and int(value) > self._options.max_body_bytes:
                raise body_too_large(self._options.max_body_bytes)
        if self._bucket is not None:
            wait_s = self._bucket.take(self._now_s(), self._load())
            if wait_s > 0:
                raise rate_limited(wait_s)

    async def _read(self, receive: Receive) -> bytes | None:
        """The whole body; None when the client has gone. Raises `Refusal`."""
        limit = self._options.max_body_bytes
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._options.body_timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    part = message.get("body", b"")
                    size += len(part)
                    if size > limit:
                        raise body_too_large(limit)
                    parts.append(part)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise _too_slow(self._options.body_timeout_s) from None


def _has_key(headers: list[tuple[bytes, bytes]], key: bytes) -> bool:
    given = [value for name, value in headers if name == b"authorization"]
    if len(given) != 1:
        return False
    scheme, _, credentials = given[0].partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(credentials.strip(), key)


def _compressed() -> Refusal:
    message = "compressed bodies are not accepted; send the JSON as it is"
    headers = {"Accept-Encoding": "identity", "Connection": "close"}
    return Refusal(415, message, None, "unsupported_encoding", headers=headers)


def _too_slow(timeout_s: float) -> Refusal:
    message = f"the request body did not arrive within {timeout_s:g} s"
    headers = {"Connection": "close"}
    return Refusal(408, message, None, "body_timeout", headers=headers)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body in one message, then whatever the client does."""
    is_given = False

    async def replay() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _refuse(refusal: Refusal, receive: Receive, send: Send) -> None:
    """The error, and where it ends the connection, a moment for the rest of the upload.

    To close with unread bytes would reset the connection, and the answer might be lost with it.
    """
    body = refusal.body()
    ends_connection = refusal.headers.get("Connection") == "close"
    await send(refusal_start(refusal, body))
    await send({"type": "http.response.body", "body": body, "more_body": ends_connection})
    if ends_connection:
        await _linger(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _linger(receive: Receive) -> None:
    left = LINGER_BYTES
    try:
        async with asyncio.timeout(LINGER_S):
            while left > 0:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
                left -= len(message.get("body", b""))
    except TimeoutError:
        return
