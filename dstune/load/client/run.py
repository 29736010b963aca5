"""Load client: one plan is carried out, open loop by a schedule or closed loop by slots.

Open loop: one dispatcher begins every session at its absolute time, however late the client or
the server is; nothing caps how many are in flight. Closed loop: each slot begins the next session
when one ends. A session's later turns follow the one before; where that did not end ok, there is
no conversation to continue, and the rest is `unsent`.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import gevent
import msgspec

from dstune.load.client import samples
from dstune.load.client.alarms import Alarm, Alarms
from dstune.load.client.exchange import Exchange, Line, request_head
from dstune.load.client.health import Heart
from dstune.load.client.parsing import ParseQueue
from dstune.load.client.pool import ConnectFailed, Pool
from dstune.load.client.receiver import Receiver
from dstune.load.client.tally import Tally
from dstune.load.client.timerfd import NS_PER_S
from dstune.load.client.waiter import Stopped, Waiter
from dstune.load.wire import WirePlan, WireRequest, WireResult
from dstune.measure.sample import Sample, Status

Session = Sequence[tuple[int, WireRequest]]  # with the place in the plan
_encode = msgspec.msgpack.Encoder().encode


class _Flow:
    """One session, or one slot, and where it blocks."""

    __slots__ = ("exchange", "waiter")

    def __init__(self, alarms: Alarms) -> None:
        self.waiter = Waiter(alarms)
        self.exchange: Exchange | None = None


class Run:
    """A plan being carried out. `stop` and `abort` are called from the hub."""

    def __init__(self, plan: WirePlan, alarms: Alarms, receiver: Receiver) -> None:
        self._plan = plan
        self._alarms = alarms
        self._receiver = receiver
        self._sessions = deque(sessions_of(plan.requests))
        self._rows: list[msgspec.Raw | None] = [None] * len(plan.requests)
        self._flows: set[_Flow] = set()
        self._waiter = Waiter(alarms)
        self._own: list[Alarm] = []
        self._is_stopping = False
        self._is_dispatching = True
        self._start_ns = 0
        self._last_ns: int | None = None  # no request begins later
        self._line: Line | None = None
        self.tally = Tally(len(plan.requests))

    def carry_out(self, start_ns: int | None) -> WireResult:
        """Carries the plan out from `start_ns` on (monotonic; None: as soon as all is prepared)
        and returns once all has ended.
        """
        plan = self._plan
        queue = ParseQueue()
        pool = Pool(plan.url, self._receiver, self._alarms)
        with contextlib.suppress(ConnectFailed):  # else every request says so
            pool.resolve()
        head = request_head(plan.path, pool.netloc, plan.headers)
        self._line = Line(pool, self._alarms, queue, head, plan.timeout_s)
        _quiet_collector()
        if start_ns is None:
            start_ns = time.monotonic_ns()
        self._start_ns = start_ns
        if plan.duration_s is not None:
            self._last_ns = start_ns + round(plan.duration_s * NS_PER_S)
            self._own.append(self._alarms.at(self._last_ns, self.stop))
        heart = Heart()
        try:
            self._dispatch()
            while self._flows:
                self._waiter.block()
        finally:
            health = heart.stop(plan.process)
            for alarm in self._own:
                alarm.cancel()
            queue.close()
            pool.close()
            _normal_collector()
        finished_ns = time.monotonic_ns()
        rows = cast(list[Sample], self._all_rows())  # encoded already, which keeps memory small
        return WireResult(started_ns=start_ns, finished_ns=finished_ns, samples=rows, health=health)

    def stop(self) -> None:
        """No request begins any more; those in flight have `grace_s` to end."""
        if not self._is_stopping:
            self._is_stopping = True
            if self._is_dispatching:
                self._waiter.interrupt(Stopped())
            for flow in [one for one in self._flows if one.exchange is None]:
                flow.waiter.interrupt(Stopped())
            grace_ns = round(self._plan.grace_s * NS_PER_S)
            self._own.append(self._alarms.at(time.monotonic_ns() + grace_ns, self.abort))

    def abort(self) -> None:
        """Everything ends now."""
        self.stop()
        for flow in list(self._flows):
            flow.waiter.interrupt(Stopped())

    @property
    def num_streaming_tokens(self) -> int:
        """Tokens, or about as many, of requests in flight."""
        flows = [one.exchange for one in self._flows if one.exchange is not None]
        return sum(one.num_chunks for one in flows)

    def _dispatch(self) -> None:
        try:
            self._waiter.until(self._start_ns)
            if self._plan.concurrency is None:
                self._begin_by_schedule()
            else:
                for _ in range(min(self._plan.concurrency, len(self._sessions))):
                    self._spawn(self._slot)
        except Stopped:
            pass
        self._is_dispatching = False

    def _begin_by_schedule(self) -> None:
        while self._sessions:
            session = self._sessions[0]
            due_ns = self._start_ns + (session[0][1].offset_ns or 0)
            if self._last_ns is not None and due_ns > self._last_ns:
                return
            self._waiter.until(due_ns)
            if self._is_stopping:
                return
            self._sessions.popleft()
            self._spawn(self._converse, session, due_ns)

    def _spawn(self, work: Any, *args: object) -> None:
        flow = _Flow(self._alarms)
        self._flows.add(flow)
        gevent.spawn(self._follow, flow, work, *args)

    def _follow(self, flow: _Flow, work: Any, *args: object) -> None:
        try:
            work(flow, *args)
        finally:
            self._flows.discard(flow)
            if not self._flows and not self._is_dispatching:
                gevent.get_hub().loop.run_callback(self._waiter.resume)

    def _slot(self, flow: _Flow) -> None:
        while self._sessions and not self._is_over():
            self._converse(flow, self._sessions.popleft(), time.monotonic_ns())

    def _is_over(self) -> bool:
        return self._is_stopping or (
            self._last_ns is not None and time.monotonic_ns() > self._last_ns
        )

    def _converse(self, flow: _Flow, session: Session, intended_ns: int) -> None:
        assert self._line is not None
        for turn, (place, request) in enumerate(session):
            if self._is_stopping:
                return
            if turn:
                intended_ns += request.think_ns
                if self._last_ns is not None and intended_ns > self._last_ns:
                    return
                try:
                    flow.waiter.until(intended_ns)
                except Stopped:
                    return
            self.tally.begun()
            flow.exchange = Exchange(self._line, request, flow.waiter)
            outcome = flow.exchange.run(intended_ns)
            flow.exchange = None
            row = samples.sample(self._plan.process, request, outcome)
            self._rows[place] = msgspec.Raw(_encode(row))
            self.tally.ended(row)
            if row.status is not Status.OK:
                self._skip(session[turn + 1 :], row.done_ns)
                return
            assert row.done_ns is not None
            intended_ns = row.done_ns

    def _skip(self, rest: Session, ended_ns: int | None) -> None:
        """Turns that have nothing to follow, at the time at which they would have been due."""
        due_ns = time.monotonic_ns() if ended_ns is None else ended_ns
        for place, request in rest:
            due_ns += request.think_ns
            row = samples.unsent(self._plan.process, request, due_ns)
            self._rows[place] = msgspec.Raw(_encode(row))

    def _all_rows(self) -> list[msgspec.Raw]:
        """The rows in the plan's order. What never began is `unsent`, or, in a closed loop with a
        duration, was never due and is left out.
        """
        plan = self._plan
        is_left_out = plan.concurrency is not None and plan.duration_s is not None
        rows = []
        for request, row in zip(plan.requests, self._rows, strict=True):
            if row is None and not is_left_out:
                due_ns = self._start_ns + (request.offset_ns or 0)
                row = msgspec.Raw(_encode(samples.unsent(plan.process, request, due_ns)))
            if row is not None:
                rows.append(row)
        return rows


def sessions_of(requests: Sequence[WireRequest]) -> list[Session]:
    """Requests by session, in the order of their first turns; one without a session stands alone.

    In an open loop that is the order of their offsets.
    """
    sessions: list[list[tuple[int, WireRequest]]] = []
    by_id: dict[str, list[tuple[int, WireRequest]]] = {}
    for place, request in enumerate(requests):
        session = by_id.get(request.session_id) if request.session_id else None
        if session is None:
            session = []
            sessions.append(session)
            if request.session_id:
                by_id[request.session_id] = session
        session.append((place, request))
    for session in sessions:
        session.sort(key=lambda one: one[1].turn)
    return sorted(sessions, key=lambda one: one[0][1].offset_ns or 0)


def _quiet_collector() -> None:
    """No collection of the whole heap in the middle of a run: it holds the loop for 10 ms."""
    gc.collect()
    gc.freeze()
    gc.disable()


def _normal_collector() -> None:
    gc.enable()
    gc.unfreeze()
    gc.collect()
