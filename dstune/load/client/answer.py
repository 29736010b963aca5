"""Load client: the bytes of one HTTP answer become its verdict and its chunks. Pure."""

from __future__ import annotations

import re
from collections import deque
from enum import Enum

import httptools
import msgspec

from dstune.load.sse import Fault, Reader
from dstune.measure.sample import SampleError, Status

_OK = 200
_TOO_LONG = re.compile(
    rb"prompt_too_long|context_length|context length"
    rb"|(prompt|input)[^.]{0,60}(too long|too many tokens|longer than|exceeds)",
    re.IGNORECASE,
)


class Verdict(msgspec.Struct, frozen=True):
    """How a request ended, as `Sample` names it."""

    status: Status
    error: SampleError = SampleError.NONE


class _Kind(Enum):
    STREAM = "stream"
    WHOLE = "whole"  # one JSON object, not streamed
    REFUSAL = "refusal"
    OTHER = "other"


_LIMITS = {_Kind.WHOLE: 16 << 20, _Kind.REFUSAL: 64 << 10, _Kind.OTHER: 0, _Kind.STREAM: 0}
_FAILED, _REJECTED = Status.FAILED, Status.REJECTED
_BY_STATUS = {
    401: Verdict(_REJECTED, SampleError.UNAUTHORIZED),
    403: Verdict(_REJECTED, SampleError.UNAUTHORIZED),
    429: Verdict(_REJECTED, SampleError.RATE_LIMITED),
    503: Verdict(_REJECTED, SampleError.QUEUE_FULL),
    504: Verdict(Status.TIMEOUT, SampleError.DEADLINE),
}
_BY_FAULT = {
    Fault.ERROR_EVENT: Verdict(_FAILED, SampleError.ERROR_EVENT),
    Fault.MALFORMED: Verdict(_FAILED, SampleError.MALFORMED),
}


class Answer:
    """One answer as it comes: `take` pieces, `close` when the peer ends the connection.

    What is `on_*` are httptools' callbacks; a stretch of the body is merely appended there, which
    costs no Python call. `release` breaks the cycle with the parser.
    """

    __slots__ = (
        "_bodies",
        "_body",
        "_has_length",
        "_is_chunked",
        "_is_over",
        "_keeps_alive",
        "_kind",
        "_parser",
        "_size",
        "_type",
        "http_status",
        "is_broken",
        "is_complete",
        "last_ns",
        "on_body",
        "reader",
    )

    def __init__(self) -> None:
        self._bodies: list[bytes] = []
        self.on_body = self._bodies.append
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self.reader = Reader()
        self.http_status: int | None = None
        self.is_complete = False
        self.is_broken = False  # no HTTP
        self.last_ns = 0  # when the last piece came
        self._type = b""
        self._kind = _Kind.OTHER
        self._is_chunked = self._has_length = self._is_over = False
        self._keeps_alive = False
        self._body: list[bytes] = []
        self._size = 0

    @property
    def has_begun(self) -> bool:
        """Whether anything of it came."""
        return self.last_ns > 0

    @property
    def can_reuse(self) -> bool:
        """Whether the connection is fit for another request."""
        return self.is_complete and self._keeps_alive and not self.is_broken

    @property
    def is_streamed(self) -> bool:
        """Whether pieces may pile up unparsed: the end shows without counting bytes."""
        return self._kind is _Kind.STREAM and not self._has_length

    def take(self, pieces: deque[tuple[int, bytes]], limit: int) -> int:
        """Takes up to `limit` pieces, each with the time at which it was received, and returns how
        many. After the end or a fault they are ignored.
        """
        count = min(limit, len(pieces))
        parser, bodies = self._parser, self._bodies
        for _ in range(count):
            self.last_ns, data = pieces.popleft()
            if parser is None or self.is_complete or self.is_broken:
                self._keeps_alive = False  # it speaks out of turn
                continue
            try:
                parser.feed_data(data)
            except httptools.HttpParserCallbackError:
                raise  # no fault of the server's
            except (httptools.HttpParserError, httptools.HttpParserUpgrade):
                self._keeps_alive = False
                self.is_broken = not self._is_over
            if bodies:
                self._take_bodies(bodies)
            if self._is_over:
                self._finish()
        return count

    def _take_bodies(self, bodies: list[bytes]) -> None:
        """What one piece held of the body."""
        if self._kind is _Kind.STREAM:
            for body in bodies:
                self.reader.feed(self.last_ns, body)
        else:
            for body in bodies:
                self._size += len(body)
                if self._size <= _LIMITS[self._kind]:
                    self._body.append(body)
        bodies.clear()

    def close(self, *, in_order: bool) -> None:
        """The peer ended the connection: the end of a body that has no other."""
        has_end = self._is_chunked or self._has_length
        if in_order and self.http_status is not None and not has_end and not self.is_complete:
            self._finish()
        self._keeps_alive = False

    def release(self) -> None:
        """Lets go of the parser."""
        self._parser = None

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        if self._is_over:
            return
        lower = name.lower()
        if lower == b"content-type":
            self._type = value.lower()
        elif lower == b"content-length":
            self._has_length = True
        elif lower == b"transfer-encoding":
            self._is_chunked = b"chunked" in value.lower()

    def on_headers_complete(self) -> None:
        """The headers are over: what kind of body follows."""
        if self._is_over:  # a second answer that nobody asked for
            self._keeps_alive = False
            return
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status < _OK:  # 100 Continue and the like come before the answer
            return
        self.http_status = status
        if status != _OK:
            self._kind = _Kind.REFUSAL
        elif b"json" in self._type:
            self._kind = _Kind.WHOLE
        elif b"html" not in self._type:
            self._kind = _Kind.STREAM

    def on_message_complete(self) -> None:
        """The answer is over, or what came before it."""
        if self.http_status is not None and self._parser is not None and not self._is_over:
            self._is_over = True
            self._keeps_alive = self._parser.should_keep_alive()

    def _finish(self) -> None:
        self._is_over = self.is_complete = True
        if self._kind is _Kind.WHOLE and self._size:
            self.reader.feed_whole(self.last_ns, b"".join(self._body))
        elif self._kind is _Kind.STREAM:
            self.reader.end(self.last_ns)

    def verdict(self) -> Verdict:
        """How the request ended, once the answer did or never will."""
        if self.is_broken:
            return _BY_FAULT[Fault.MALFORMED]
        if self.http_status is None:
            return Verdict(_FAILED, SampleError.RESET)
        if self._kind is _Kind.REFUSAL:
            return self._refused(self.http_status)
        if self._kind is _Kind.OTHER and self._size:
            return _BY_FAULT[Fault.MALFORMED]
        reader = self.reader
        if reader.fault is not Fault.NONE:
            return _BY_FAULT[reader.fault]
        if not (self.is_complete or reader.is_done):
            return Verdict(_FAILED, SampleError.RESET)
        is_ended = reader.is_done or reader.finish_reason or self._kind is _Kind.WHOLE
        if not is_ended and reader.num_events:
            return Verdict(_FAILED, SampleError.TRUNCATED)
        if not reader.num_chunks:
            return Verdict(_FAILED, SampleError.NO_TOKENS)
        return Verdict(Status.OK)

    def _refused(self, status: int) -> Verdict:
        if status in _BY_STATUS:
            return _BY_STATUS[status]
        if status >= 500:
            return Verdict(_FAILED, SampleError.SERVER_ERROR)
        if status >= 400:
            is_long = _TOO_LONG.search(b"".join(self._body)) is not None
            return Verdict(
                _REJECTED, SampleError.PROMPT_TOO_LONG if is_long else SampleError.BAD_REQUEST
            )
        return _BY_FAULT[Fault.MALFORMED]  # a redirect, or a success that is no answer
