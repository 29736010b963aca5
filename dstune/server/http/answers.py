"""Whole answers as plain ASGI messages: one JSON document, or a refusal."""

from __future__ import annotations

from collections.abc import Sequence

from dstune.server.http.logs import Message, Send
from dstune.server.http.refusal import Refusal

Headers = Sequence[tuple[bytes, bytes]]


def json_start(status: int, body: bytes, headers: Headers = ()) -> Message:
    """The head of an answer whose body is a JSON document."""
    own = ((b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()))
    return {"type": "http.response.start", "status": status, "headers": [*own, *headers]}


def refusal_start(refusal: Refusal, body: bytes) -> Message:
    """The head of a refusal, with its own headers."""
    headers = [(name.lower().encode(), value.encode()) for name, value in refusal.headers.items()]
    return json_start(refusal.status, body, headers)


async def send_json(send: Send, status: int, body: bytes) -> None:
    """One JSON document as the answer."""
    await send(json_start(status, body))
    await send({"type": "http.response.body", "body": body})


async def send_refusal(send: Send, refusal: Refusal) -> None:
    """A refusal as the answer."""
    body = refusal.body()
    await send(refusal_start(refusal, body))
    await send({"type": "http.response.body", "body": body})
