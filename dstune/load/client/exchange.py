"""Load client: one request from its intended time to its sample."""

from __future__ import annotations

import logging
import time
from typing import Any

import msgspec
from gevent.hub import get_hub

from dstune.load.client.alarms import Alarms
from dstune.load.client.answer import Answer, Verdict
from dstune.load.client.connection import BACKLOG_PIECES, Connection, Ended
from dstune.load.client.parsing import ParseQueue
from dstune.load.client.pool import ConnectFailed, Pool
from dstune.load.client.timerfd import NS_PER_S
from dstune.load.client.waiter import DeadlinePassed, Stopped, Waiter
from dstune.load.wire import Reading, WireRequest
from dstune.measure.sample import SampleError, Status

AFTER_DONE_NS = (
    250_000_000  # for the end of the body after [DONE]; then the answer is taken as over
)
_WRITE = 2  # libev's EV_WRITE
_DEADLINE = Verdict(Status.TIMEOUT, SampleError.DEADLINE)
_STOPPED = Verdict(Status.INCOMPLETE, SampleError.STOPPED)
_HUNG_UP = Verdict(Status.CANCELLED, SampleError.DISCONNECTED)
_NO_CONNECTION = Verdict(Status.FAILED, SampleError.CONNECT)
_INTERNAL = Verdict(Status.FAILED, SampleError.INTERNAL)


class Line(msgspec.Struct, frozen=True):
    """What all exchanges of a run share."""

    pool: Pool
    alarms: Alarms
    queue: ParseQueue
    head: bytes  # of every request, up to the value of Content-Length
    timeout_s: float


def request_head(path: str, netloc: str, headers: dict[str, str]) -> bytes:
    """Request line and headers, up to the value of Content-Length."""
    own = {
        "host": netloc,
        "content-type": "application/json",
        "accept": "text/event-stream, application/json",
        "accept-encoding": "identity",
        "user-agent": "dstune",
    }
    merged = own | {name.lower(): value for name, value in headers.items()}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in merged.items())]
    return "\r\n".join([*lines, "content-length: "]).encode("latin-1")


class Outcome(msgspec.Struct):
    """What became of one request; times that never came are None."""

    verdict: Verdict
    intended_ns: int
    sent_ns: int | None = None
    done_ns: int | None = None
    answer: Answer | None = None


class Exchange:
    """Sends one request and waits for its answer. Used once, in the greenlet that owns `waiter`."""

    __slots__ = (
        "_answer",
        "_connection",
        "_has_failed",
        "_hub",
        "_is_over",
        "_is_queued",
        "_line",
        "_request",
        "_sent_ns",
        "_waiter",
    )

    def __init__(self, line: Line, request: WireRequest, waiter: Waiter) -> None:
        self._line = line
        self._request = request
        self._waiter = waiter
        self._hub: Any = get_hub()
        self._answer = Answer()
        self._connection: Connection | None = None
        self._sent_ns: int | None = None
        self._is_queued = self._is_over = self._has_failed = False

    @property
    def num_chunks(self) -> int:
        """Chunks with tokens, as far as they have been parsed."""
        return self._answer.reader.num_chunks

    def run(self, intended_ns: int) -> Outcome:
        """Carries the request out; never raises for anything that the server does."""
        deadline_ns = intended_ns + round(self._line.timeout_s * NS_PER_S)
        alarm = self._line.alarms.at(deadline_ns, lambda: self._waiter.interrupt(DeadlinePassed()))
        try:
            verdict = self._carry_out()
        except ConnectFailed:
            verdict = _NO_CONNECTION
        except DeadlinePassed:
            verdict = self._cut_short(_DEADLINE)
        except Stopped:
            verdict = self._cut_short(_STOPPED)
        except Exception:
            logging.getLogger(__name__).exception("a request could not be carried out")
            verdict = _INTERNAL
        finally:
            alarm.cancel()
            self._let_go()
        is_stopped = verdict.status is Status.INCOMPLETE
        answer = self._answer
        done_ns = answer.last_ns if answer.is_complete else time.monotonic_ns()
        return Outcome(verdict, intended_ns, self._sent_ns, None if is_stopped else done_ns, answer)

    def _carry_out(self) -> Verdict:
        reading = self._request.reading
        while True:
            self._connection = (
                self._line.pool.open(self._waiter, is_slow=True)
                if reading is Reading.SLOW
                else self._line.pool.take(self._waiter)
            )
            is_reused = self._connection.num_uses > 0
            self._send(self._connection)
            while not self._is_settled():
                self._waiter.block()
            if not (is_reused and self._connection.ended and not self._answer.has_begun):
                break
            # the server closed it, idle, just as it was used: no fault of either
            self._connection.close()
        if self._has_failed:
            return _INTERNAL
        if reading is Reading.HANG_UP and self._answer.reader.num_chunks:
            return _HUNG_UP
        if self._answer.reader.is_done and not self._answer.is_complete:
            self._await_end_of_body()
        return self._answer.verdict()

    def _send(self, connection: Connection) -> None:
        body = self._request.body
        data = memoryview(b"%s%d\r\n\r\n%s" % (self._line.head, len(body), body))
        connection.begin(self._on_pieces)
        self._sent_ns = time.monotonic_ns()
        while data:
            try:
                data = data[connection.send(data) :]
            except BlockingIOError:
                # an answer may come before all is sent, and end the wait
                if self._is_settled():
                    return
                self._waiter.ready(connection.fileno(), _WRITE)
            except OSError:
                return  # what the server said before it closed is still to be read

    def _is_settled(self) -> bool:
        """Whether nothing more is to be waited for."""
        answer = self._answer
        assert self._connection is not None
        return (
            answer.is_complete
            or answer.is_broken
            or self._has_failed
            or answer.reader.is_done
            or (self._connection.ended is not None and not self._is_queued)
            or (self._request.reading is Reading.HANG_UP and answer.reader.num_chunks > 0)
        )

    def _await_end_of_body(self) -> None:
        """After [DONE] the answer is whole; only whether the connection can be kept is open."""
        assert self._connection is not None
        due_ns = time.monotonic_ns() + AFTER_DONE_NS
        alarm = self._line.alarms.at(due_ns, self._resume)
        try:
            while not (
                self._answer.is_complete or self._connection.ended or time.monotonic_ns() >= due_ns
            ):
                self._waiter.block()
        finally:
            alarm.cancel()

    def _cut_short(self, verdict: Verdict) -> Verdict:
        """A deadline or a stop, unless the answer turns out to be whole by what was received."""
        connection = self._connection
        if connection is None or connection.is_closed or self._has_failed:
            return verdict
        self.parse(len(connection.pieces))
        answer = self._answer
        is_whole = answer.is_complete or answer.reader.is_done or answer.is_broken
        return answer.verdict() if is_whole else verdict

    def _let_go(self) -> None:
        self._is_over = True
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed:
            is_plain = self._request.reading is Reading.PROMPT
            if is_plain and self._answer.can_reuse and connection.ended is None:
                self._line.pool.give_back(connection)
            else:
                connection.close()
        self._answer.release()

    def _on_pieces(self, connection: Connection) -> None:
        """Called from the hub when pieces should be parsed."""
        if not self._is_queued and not self._is_over:
            self._is_queued = True
            self._line.queue.push(self)

    def parse(self, limit: int) -> int:
        """As `parsing.Parsed` says."""
        self._is_queued = False
        connection, answer = self._connection, self._answer
        if connection is None:
            return 0
        pieces = connection.pieces
        count = answer.take(pieces, limit)
        if pieces and not self._is_over:
            self._on_pieces(connection)
            return count
        connection.parsed()
        if self._request.reading is not Reading.HANG_UP and answer.is_streamed:
            connection.wake_at = BACKLOG_PIECES
        if connection.ended is not None:
            answer.close(in_order=connection.ended is Ended.IN_ORDER)
        if self._is_settled():
            self._hub.loop.run_callback(self._resume)
        return count

    def _resume(self) -> None:
        if not self._is_over:  # the greenlet may have gone on to other things
            self._waiter.resume()

    def fail(self) -> None:
        """As `parsing.Parsed` says."""
        self._has_failed = True
        self._hub.loop.run_callback(self._resume)
