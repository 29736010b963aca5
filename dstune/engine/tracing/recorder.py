"""What every operation of a step takes, moves and computes, as rows.

Reading the clock and counting bytes takes time as well: it is left out of every figure, so that
the operations of a step and what they do not explain add up to what the engine itself took.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dstune.engine.tracing.classes import class_of
from dstune.engine.tracing.cost import NOTHING, Cost, cost_of

STEP_COLUMNS = (
    "step",
    "start_ns",
    "duration_ns",
    "num_prefill_tokens",
    "num_decode_tokens",
    "num_context_tokens",
    "wait_ns",
    "http_ns",
)
OPERATION_COLUMNS = ("step", "operation", "num_calls", "time_ns", "num_bytes", "num_flops")
MOST_STEPS = 50_000  # some 15 operations each: 40 MiB
SPAN_STEPS = 200  # whose single calls are kept
MOST_SPANS = 100_000


@dataclass(frozen=True)
class StepFacts:
    """What a step computed; times as its caller saw them."""

    start_ns: int
    end_ns: int
    num_prefill_tokens: int
    num_decode_tokens: int
    num_context_tokens: int


class Recorder:
    """Times operations on a clock, step by step; `take` hands the rows out and forgets them."""

    def __init__(self, now_ns: Callable[[], int], most_steps: int = MOST_STEPS) -> None:
        self._now_ns = now_ns
        self.most_steps = most_steps
        self._names: list[str] = []
        self._is_open = False
        self._nested_ns = 0  # of what was called within the operation that runs
        self._step: dict[int, list[int]] = {}  # of the open step, by the operation's number
        self._step_spans: list[tuple[int, int, int]] = []
        self._recording_ns = 0
        self._wait_ns = 0
        self._forget()

    def _forget(self) -> None:
        self._steps = array("q")
        self._operations = array("q")
        self._spans: list[tuple[int, int, int]] = []
        self._num_steps = 0
        self._num_dropped = 0
        self._last_end_ns: int | None = None

    def number_of(self, name: str) -> int:
        """The operation's place in `names`; raises `DstuneError` for one without a class."""
        class_of(name)
        if name not in self._names:
            self._names.append(name)
        return self._names.index(name)

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, recorded where it is called within a step."""
        number, now_ns = self.number_of(name), self._now_ns
        cost = cost_of(name, function)

        def call(*arguments: Any) -> Any:
            outer_ns, self._nested_ns = self._nested_ns, 0
            start_ns = now_ns()
            result = function(*arguments)
            end_ns = now_ns()
            if self._is_open:
                own_ns = end_ns - start_ns - self._nested_ns
                self.book(number, own_ns, NOTHING if cost is None else cost(*arguments))
                self._span(number, start_ns, end_ns)
            after_ns = now_ns()
            self._recording_ns += after_ns - end_ns
            self._nested_ns = outer_ns + after_ns - start_ns
            return result

        return call

    def book(self, number: int, time_ns: int, cost: Cost) -> None:
        """Adds a call to the open step."""
        row = self._step.get(number)
        if row is None:
            row = self._step[number] = [0, 0, 0, 0]
        row[0] += 1
        row[1] += time_ns
        row[2] += cost.num_bytes
        row[3] += cost.num_flops

    def _span(self, number: int, start_ns: int, end_ns: int) -> None:
        if self._num_steps < SPAN_STEPS and len(self._spans) < MOST_SPANS:
            shift = self._recording_ns  # on a time line from which recording is left out
            self._step_spans.append((number, start_ns - shift, end_ns - start_ns))

    def add(self, step: int, name: str, spent: tuple[int, int], cost: Cost) -> None:
        """Adds (calls, ns) of an operation to a step that is already kept, once."""
        self._operations.extend((step, self.number_of(name), *spent, *cost))

    def add_span(self, name: str, start_ns: int, duration_ns: int) -> None:
        """Adds a call to the time line."""
        if len(self._spans) < MOST_SPANS:
            self._spans.append((self.number_of(name), start_ns, duration_ns))

    def waited(self, since_ns: int) -> None:
        """Books the time since then as spent with nothing to do."""
        self._wait_ns += self._now_ns() - since_ns

    @contextmanager
    def step(self) -> Iterator[Callable[[StepFacts], int | None]]:
        """One step; what it gives takes the step's facts, without which nothing is kept.

        It returns the step's number, or None where there is no room.
        """
        self._is_open, self._step, self._step_spans = True, {}, []
        self._recording_ns = self._nested_ns = 0
        try:
            yield self._keep
        finally:
            self._is_open = False

    def _keep(self, facts: StepFacts) -> int | None:
        number = None
        wait_ns = http_ns = 0
        if self._last_end_ns is not None:
            between_ns = facts.start_ns - self._last_end_ns
            wait_ns = min(self._wait_ns, between_ns)
            http_ns = between_ns - wait_ns
        self._wait_ns = 0
        if self._num_steps < self.most_steps:
            number = self._keep_rows(facts, wait_ns, http_ns)
        else:
            self._num_dropped += 1
        self.passed()
        return number

    def passed(self) -> None:
        """Leaves the time since the last step's end out: it went into recording."""
        self._last_end_ns = self._now_ns()

    def _keep_rows(self, facts: StepFacts, wait_ns: int, http_ns: int) -> int:
        step = self._num_steps
        self._num_steps += 1
        duration_ns = facts.end_ns - facts.start_ns - self._recording_ns
        row = (facts.num_prefill_tokens, facts.num_decode_tokens, facts.num_context_tokens)
        self._steps.extend((step, facts.start_ns, duration_ns, *row, wait_ns, http_ns))
        for number, booked in self._step.items():
            self._operations.extend((step, number, *booked))
        self._spans.extend(self._step_spans)
        return step

    def take(self) -> dict[str, Any]:
        """The rows of every step since they were last taken, as plain lists by these columns:

        {"names": [[operation, class], ...], "steps": STEP_COLUMNS, "operations":
        OPERATION_COLUMNS, the operation by its place in `names`, "spans": [that place, start_ns,
        duration_ns] of the first SPAN_STEPS steps, "num_dropped_steps": those beyond the room}
        """
        taken = {
            "names": [(name, class_of(name)) for name in self._names],
            "steps": _rows(self._steps, len(STEP_COLUMNS)),
            "operations": _rows(self._operations, len(OPERATION_COLUMNS)),
            "spans": self._spans,
            "num_dropped_steps": self._num_dropped,
        }
        self._forget()
        return taken


def _rows(values: Sequence[int], width: int) -> list[Sequence[int]]:
    return [list(values[start : start + width]) for start in range(0, len(values), width)]
