"""One client's connection: uvicorn's, with bounds on clients that neither send nor read.

The head of a request is bounded here, because before its end there is no request yet; what comes
after it is bounded by `limits.py`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dstune.server.http.refusal import bad_request

MAX_HEAD_BYTES = 1 << 16


class Connection(HttpToolsProtocol):
    """Closes when a head does not end within `MAX_HEAD_BYTES` and `head_timeout_s`.

    Also when an answer is waiting and the client takes none of it for `stall_timeout_s`: a slow
    reader gets all of its answer, one that never reads must not hold it for ever.
    """

    def __init__(self, *, head_timeout_s: float, stall_timeout_s: float, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self._head_timeout_s = head_timeout_s
        self._stall_timeout_s = stall_timeout_s
        self._stall_timer: asyncio.TimerHandle | None = None
        self._num_unread = 0
        self._head_bytes: int | None = 0  # None: the head is complete
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins with a head to come."""
        super().connection_made(transport)
        self._expect_head()

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._head_timeout_s, self._close)

    def _close(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Parses what has come."""
        if self._head_bytes is not None:
            self._head_bytes += len(data)
            self._expect_head()  # of a further request; until here the connection was idle
        super().data_received(data)
        if self._head_bytes is not None and self._head_bytes > MAX_HEAD_BYTES:
            self._close()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP gets an error object as well, and the connection ends."""
        body = bad_request("the request is not valid HTTP", None, "invalid_http").body()
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def on_headers_complete(self) -> None:
        """The head is complete, the request begins."""
        self._head_bytes = None
        self._forget_head()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is complete; the next one may follow on the same connection."""
        self._head_bytes = 0
        super().on_message_complete()

    def pause_writing(self) -> None:
        """The client takes less than it is sent."""
        super().pause_writing()
        self._expect_reading()

    def _expect_reading(self) -> None:
        self._num_unread = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(self._stall_timeout_s, self._check_reading)

    def _check_reading(self) -> None:
        if self.transport.get_write_buffer_size() < self._num_unread:
            self._expect_reading()
        else:
            self.transport.abort()  # close would wait for the client to read the rest

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._forget_stall()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        self._forget_head()
        self._forget_stall()
        super().connection_lost(exc)

    def _forget_stall(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
