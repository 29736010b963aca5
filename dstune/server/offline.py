"""The in-process driver: carries a plan of requests out on the engine and stamps what happens.

One thread submits, steps and stamps. A request that falls due while a step runs is submitted
after it; its intended time is kept, so that the wait counts. A later turn of a session falls due
its think time after the turn before it ended, in whatever way.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dstune.engine.engine import Engine, StepOutput
from dstune.engine.request import Request, SamplingParams
from dstune.errors import UsageError
from dstune.server.online import step_row

NS_PER_S = 1_000_000_000
SPIN_NS = 200_000  # sleep is late by up to this much; the rest of a wait is spun


@dataclass(frozen=True)
class OfflineRequest:
    """A planned request as it comes over the pipe; the fields are `PlannedRequest`'s."""

    request_id: str
    offset_ns: int | None
    prompt_token_ids: list[int]
    output_tokens: int
    seed: int
    session_id: str
    turn: int
    kind: str
    think_ns: int = 0


@dataclass(frozen=True)
class OfflineResult:
    """Rows for `requests.parquet` and `steps.parquet`, without the caller's own columns."""

    started_ns: int
    finished_ns: int
    rows: list[dict[str, Any]]
    steps: list[dict[str, int]]


@dataclass
class Flight:
    """One request's raw stamps while it is under way."""

    planned: OfflineRequest
    intended_ns: int  # of a later turn: once the turn before it has ended
    sent_ns: int | None = None
    token_ns: list[int] = field(default_factory=list)
    request: Request | None = None
    done_ns: int | None = None
    status: str = "unsent"
    error: str = ""
    next_turn: Flight | None = None

    def row(self, precision: str, backend: str) -> dict[str, Any]:
        """The request's sample."""
        request, sent = self.request, self.sent_ns
        queue_ns = None
        if request is not None and request.first_scheduled_ns is not None and sent is not None:
            queue_ns = max(0, request.first_scheduled_ns - sent)
        return {
            "request_id": self.planned.request_id,
            "session_id": self.planned.session_id,
            "turn": self.planned.turn,
            "kind": self.planned.kind,
            "status": self.status,
            "error": self.error,
            "intended_ns": self.intended_ns,
            "sent_ns": sent,
            "first_token_ns": self.token_ns[0] if self.token_ns else None,
            "last_token_ns": self.token_ns[-1] if self.token_ns else None,
            "done_ns": self.done_ns,
            "chunk_offsets_ns": [at - (sent or 0) for at in self.token_ns],
            "chunk_tokens": [1] * len(self.token_ns),
            "prompt_tokens": len(self.planned.prompt_token_ids),
            "output_tokens": len(self.token_ns),
            "cached_tokens": None if request is None else request.num_cached_tokens,
            "queue_ns": queue_ns,
            "precision": precision,
            "backend": backend,
        }


class OfflineRun:
    """The state of one run; `run_offline` drives it."""

    def __init__(
        self, engine: Engine, planned: list[OfflineRequest], temperature: float, timeout_s: float
    ) -> None:
        self.engine = engine
        self.temperature = temperature
        self.timeout_ns = int(timeout_s * NS_PER_S)
        self.started_ns = engine.now_ns()
        self.flights = [Flight(one, self.started_ns + (one.offset_ns or 0)) for one in planned]
        for before, flight in itertools.pairwise(self.flights):
            if flight.planned.turn:
                before.next_turn = flight
        # first turns, in the order of sending; later ones join `thinking` when they have a time
        self.pending = deque(one for one in self.flights if not one.planned.turn)
        self.thinking: list[tuple[int, int, Flight]] = []
        self.num_open = 0  # sessions that have begun and have not ended
        self.in_flight: dict[str, Flight] = {}
        self.steps: list[dict[str, int]] = []
        self.num_finished = 0

    def submit_due(self, concurrency: int | None) -> None:
        """Hands over what is due: by intended time, or as a closed loop has room."""
        now = self.engine.now_ns()
        while self.thinking and self.thinking[0][0] <= now:
            self._submit(heapq.heappop(self.thinking)[2], now)
        while self.pending:
            if concurrency is None:
                if self.pending[0].intended_ns > now:
                    return
            elif self.num_open >= concurrency:
                return
            flight = self.pending.popleft()
            if concurrency is not None:
                flight.intended_ns = now
            self.num_open += 1
            self._submit(flight, now)

    def _submit(self, flight: Flight, now: int) -> None:
        planned = flight.planned
        flight.sent_ns = now
        params = SamplingParams(
            max_tokens=planned.output_tokens,
            temperature=self.temperature,
            seed=planned.seed,
            ignore_eos=True,
        )
        try:
            flight.request = self.engine.add(
                planned.request_id,
                tuple(planned.prompt_token_ids),
                params,
                arrival_ns=flight.intended_ns,
            )
        except UsageError as refused:
            too_long = len(planned.prompt_token_ids) >= self.engine.size.max_model_len
            flight.error = "prompt_too_long" if too_long else "internal"
            if not too_long:
                raise UsageError(f"request {planned.request_id}: {refused}") from refused
            self._end(flight, "rejected", now)
            return
        flight.status = "incomplete"
        self.in_flight[planned.request_id] = flight

    def _end(self, flight: Flight, status: str, now: int) -> None:
        flight.status = status
        flight.done_ns = now
        self.num_finished += 1
        self.in_flight.pop(flight.planned.request_id, None)
        following = flight.next_turn
        if following is None:
            self.num_open -= 1
            return
        following.intended_ns = now + following.planned.think_ns
        heapq.heappush(self.thinking, (following.intended_ns, self.num_finished, following))

    def book(self, step: StepOutput) -> None:
        """Stamps a step's tokens with the time at which they came out."""
        for token in step.tokens:
            flight = self.in_flight[token.request.request_id]
            flight.token_ns.append(step.end_ns)
            if token.finish_reason:
                self._end(flight, "ok", step.end_ns)
        self.steps.append(step_row(step))

    def expire(self) -> None:
        """Ends requests that are past their deadline."""
        now = self.engine.now_ns()
        for flight in list(self.in_flight.values()):
            if now - flight.intended_ns > self.timeout_ns:
                self.engine.abort(flight.planned.request_id)
                flight.error = "deadline"
                self._end(flight, "timeout", now)

    def wake_ns(self, concurrency: int | None) -> int | None:
        """With nothing to compute: when the next thing happens, or None for nothing ever."""
        times = [self.thinking[0][0]] if self.thinking else []
        if self.pending and concurrency is None:
            times.append(self.pending[0].intended_ns)
        held_until = self.engine.hold_until_ns()
        if held_until is not None:
            times.append(held_until)
        return min(times, default=None)


def run_offline(
    engine: Engine,
    planned: list[OfflineRequest],
    *,
    concurrency: int | None,
    temperature: float,
    timeout_s: float,
    report: Callable[[int], None] = lambda finished: None,
    wait_until: Callable[[int], None] | None = None,
) -> OfflineResult:
    """Carries out every request, by its offset or in a closed loop of `concurrency`.

    Returns a row for each planned request, in the plan's order, whatever became of it.
    """
    wait = wait_until or wait_until_ns
    run = OfflineRun(engine, planned, temperature, timeout_s)
    try:
        while run.pending or run.thinking or run.in_flight:
            run.submit_due(concurrency)
            step = engine.step()
            if step is not None:
                run.book(step)
            elif (at := run.wake_ns(concurrency)) is not None:
                wait(at)
            run.expire()
            report(run.num_finished)
    finally:
        for request_id in list(run.in_flight):
            engine.abort(request_id)
    precision = engine.config.precision
    rows = [flight.row(precision, engine.backend) for flight in run.flights]
    return OfflineResult(run.started_ns, engine.now_ns(), rows, run.steps)


def wait_until_ns(at_ns: int) -> None:
    """Sleeps, then spins the last stretch, until the monotonic clock shows `at_ns`."""
    while (left := at_ns - time.monotonic_ns()) > 0:
        if left > SPIN_NS:
            time.sleep((left - SPIN_NS) / NS_PER_S)
