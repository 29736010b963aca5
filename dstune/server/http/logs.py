"""Structured logs of `dstune serve`: one JSON object per line, an access line per request.

A line tells sizes, times and outcomes; never the text or the tokens of a prompt or an answer.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any, TextIO

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

NOTES = "dstune.notes"  # in the scope: what a route adds to its access line
LONGEST_PATH = 120

_CLIENT_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")
_access = logging.getLogger("dstune.access")


class JsonLines(logging.Formatter):
    """Any record as one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """`ts` (UTC), `level`, `event`, and the record's own fields."""
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "ts": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to(stream: TextIO) -> None:
    """Sends the records of the server, of its requests and of uvicorn to `stream`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    for name, level in (("dstune", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False


def log_event(event: str, **fields: object) -> None:
    """One line of the server's own doing, such as its start and its end."""
    logging.getLogger("dstune.server").info(event, extra={"fields": fields})


def note(scope: Message, **fields: object) -> None:
    """Adds fields to the access line of this request; without an access log nothing happens."""
    notes = scope.get(NOTES)
    if notes is not None:
        notes.update(fields)


class AccessLog:
    """ASGI: gives each request an id, which the answer repeats, and writes its line at its end."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count(1)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Passes the request on; its line is written however it ends."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        request_id = _given_id(scope) or f"{self._prefix}-{next(self._numbers)}"
        notes: dict[str, Any] = {}
        scope[NOTES] = notes
        status: int | None = None
        first_s: float | None = None

        async def watched(message: Message) -> None:
            nonlocal status, first_s
            if message["type"] == "http.response.start":
                status = message["status"]
                first_s = time.monotonic() - began
                header = (b"x-request-id", request_id.encode())
                message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            fields = {
                "id": request_id,
                "method": scope["method"][:20],
                "route": scope["path"][:LONGEST_PATH],
                "status": status,  # null: the client had gone
                "first_byte_ms": None if first_s is None else round(1e3 * first_s, 2),
                "duration_ms": round(1e3 * (time.monotonic() - began), 2),
                **notes,
            }
            _access.info("request", extra={"fields": fields})


def _given_id(scope: Message) -> str | None:
    """The client's own id where it sends a harmless one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _CLIENT_ID.fullmatch(value):
            return str(value, "ascii")
    return None
