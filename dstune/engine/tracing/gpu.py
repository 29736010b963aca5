"""What a GPU's steps cost: kernels from the profiler (CUPTI), bytes and FLOPs from the calls.

A replayed graph calls nothing, so what was called while it was captured is kept and counted at
every replay, with that step's own lengths in the place of the captured ones. Each step, and each
operation outside of graphs, is an NVTX range, which `nsys` shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from dstune.engine.graphs import Capture, Forward
from dstune.engine.scheduler import StepPlan
from dstune.engine.tracing.cost import NOTHING, Cost, CostOf, cost_of
from dstune.engine.tracing.gpu_kernels import KernelEvent, Spent, by_step, spent_by
from dstune.engine.tracing.recorder import SPAN_STEPS, Recorder
from dstune.errors import DstuneError
from dstune.kernels.batch import AttentionBatch

MOST_PROFILED_STEPS = 4_000  # some hundred kernels each, which the profiler holds in memory
LEAST_WITHIN = 0.5  # of all kernels that must lie in steps, else the clocks do not match


@dataclass
class CalledInStep:
    """What one step called."""

    calls: dict[str, int] = field(default_factory=dict)
    costs: dict[str, Cost] = field(default_factory=dict)
    layers: list[str] = field(default_factory=list)  # linear ones, in the order of their calls

    def add(self, name: str, cost: Cost) -> None:
        """Books a call."""
        before = self.costs.get(name, NOTHING)
        self.calls[name] = self.calls.get(name, 0) + 1
        self.costs[name] = Cost(
            before.num_bytes + cost.num_bytes, before.num_flops + cost.num_flops
        )
        if name.startswith("linear."):
            self.layers.append(name)


@dataclass(frozen=True)
class Taped:
    """One call of a captured graph, its tensors without storage."""

    name: str
    cost: CostOf | None
    arguments: tuple[Any, ...]

    def cost_with(self, kv_lens: tuple[int, ...]) -> Cost:
        """Its cost in a decode step of sequences of these lengths."""
        if self.cost is None:
            return NOTHING
        ones = (1,) * len(kv_lens)
        return self.cost(
            *(
                replace(one, host_query_lens=ones, host_kv_lens=kv_lens)
                if isinstance(one, AttentionBatch)
                else one
                for one in self.arguments
            )
        )


class CallLog:
    """Counts calls of operations, within captured graphs and outside of them."""

    def __init__(self, mark: Callable[[str], None], unmark: Callable[[], None]) -> None:
        self._mark, self._unmark = mark, unmark
        self._tape: list[Taped] | None = None  # while a graph is captured
        self._replayed: list[Taped] = []
        self._step = CalledInStep()

    def noted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function; its calls are counted and marked."""
        cost = cost_of(name, function)

        def call(*arguments: Any) -> Any:
            if self._tape is not None:
                self._tape.append(Taped(name, cost, tuple(_shape_only(one) for one in arguments)))
            else:
                self._step.add(name, NOTHING if cost is None else cost(*arguments))
            self._mark(name)
            try:
                return function(*arguments)
            finally:
                self._unmark()

        return call

    def around(self, capture: Capture) -> Capture:
        """The same way of capturing; what a graph calls is kept and counted when it is replayed."""

        def taping(forward: Forward) -> Forward:
            tape: list[Taped] = []

            def taped() -> Tensor:
                tape.clear()  # a capture computes twice
                self._tape = tape
                try:
                    return forward()
                finally:
                    self._tape = None

            replay = capture(taped)

            def replayed() -> Tensor:
                self._replayed = tape
                return replay()

            return replayed

        return taping

    def take(self, plan: StepPlan) -> CalledInStep:
        """What was called since the last time, in a step of this plan."""
        kv_lens = tuple(one.start + one.num_tokens for one in plan.scheduled)
        for one in self._replayed:
            self._step.add(one.name, one.cost_with(kv_lens))
        taken, self._step, self._replayed = self._step, CalledInStep(), []
        return taken


def _shape_only(value: Any) -> Any:
    """The same with tensors that have no storage: a captured graph's memory is not to be held."""
    if isinstance(value, Tensor):
        return torch.empty_like(value, device="meta")
    if isinstance(value, tuple):
        return tuple(_shape_only(one) for one in value)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {one.name: _shape_only(getattr(value, one.name)) for one in fields(value)}
        return replace(value, **changed)
    return value


class GpuTrace:
    """The kernels of steps; `give` adds their rows to the recorder's."""

    def __init__(self, recorder: Recorder, device: torch.device) -> None:
        self._recorder = recorder
        self._device = device
        self._profile: profile | None = None
        self._clock_offset_ns = 0
        self._steps: list[tuple[int, int, int]] = []  # the recorder's number, start, end
        self._called: list[CalledInStep] = []
        self._events: list[KernelEvent] = []
        self.log = CallLog(_push_range, _pop_range)

    def begin(self) -> None:
        """Starts the profiler; forgets what it saw before."""
        self.stop()
        self._steps, self._called, self._events = [], [], []
        self.log.take(StepPlan(()))  # what was called to measure and to warm up
        torch.cuda.synchronize(self._device)
        # the profiler stamps with the system's clock, the engine with the monotonic one
        self._clock_offset_ns = time.time_ns() - time.monotonic_ns()
        self._profile = profile(activities=[ProfilerActivity.CUDA])
        self._profile.start()

    @contextmanager
    def step_range(self) -> Iterator[None]:
        """An NVTX range around a step."""
        _push_range("step")
        try:
            yield
        finally:
            _pop_range()

    def keep(self, number: int | None, times: tuple[int, int], plan: StepPlan) -> None:
        """Keeps a step that the recorder has under this number; None: it has no room for more."""
        called = self.log.take(plan)
        if number is None:
            self.stop()
        elif self._profile is not None:
            self._steps.append((number, *times))
            self._called.append(called)

    def stop(self) -> None:
        """Stops the profiler, if it runs, and keeps what it saw."""
        if self._profile is None:
            return
        torch.cuda.synchronize(self._device)
        running, self._profile = self._profile, None
        running.stop()
        self._events = kernel_events(running, self._clock_offset_ns)

    def give(self) -> None:
        """Adds rows of all that was seen to the recorder's; see `record_kernels`."""
        self.stop()
        if self._steps:
            record_kernels(self._recorder, self._events, self._steps, self._called)


def _push_range(name: str) -> None:
    torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call]


def _pop_range() -> None:
    torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]


def kernel_events(finished: profile, clock_offset_ns: int) -> list[KernelEvent]:
    """What ran on the GPU, copies included, on the monotonic clock."""
    inner = finished.profiler
    assert inner is not None and inner.kineto_results is not None
    return [
        KernelEvent(one.name(), one.start_ns() - clock_offset_ns, one.duration_ns())
        for one in inner.kineto_results.events()
        if one.device_type().name == "CUDA"
        and one.duration_ns() > 0
        and not one.is_user_annotation()  # a range is no kernel
    ]


def record_kernels(
    recorder: Recorder,
    events: Sequence[KernelEvent],
    steps: Sequence[tuple[int, int, int]],
    called: Sequence[CalledInStep],
) -> None:
    """Adds rows and spans of every step's kernels: (number, start_ns, end_ns) of each.

    Raises `DstuneError` where most kernels lie outside of the steps: the clocks do not match then.
    """
    found, num_outside = by_step(events, [(start_ns, end_ns) for _, start_ns, end_ns in steps])
    if num_outside > (1 - LEAST_WITHIN) * len(events):
        raise DstuneError(
            f"{num_outside} of {len(events)} GPU kernels lie outside of the engine's steps: the "
            "profiler's clock cannot be matched with the engine's; trace with nsys instead"
        )
    for (number, *_), kernels, one in zip(steps, found, called, strict=True):
        spent = spent_by(kernels, one.calls, one.layers)
        for name, (num_calls, time_ns, cost) in _rows(spent, one).items():
            recorder.add(number, name, (num_calls, time_ns), cost)
        if spent.gap_ns:
            recorder.add(number, "launch_gap", (len(kernels) - 1, spent.gap_ns), NOTHING)
        if number < SPAN_STEPS:
            for name, kernel in spent.named:
                recorder.add_span(name, kernel.start_ns, kernel.duration_ns)


def _rows(spent: Spent, called: CalledInStep) -> dict[str, tuple[int, int, Cost]]:
    """(calls, time, cost) by operation; layers without a time of their own are `linear` as one."""
    rows: dict[str, tuple[int, int, Cost]] = {}
    for name, num_calls in called.calls.items():
        cost = called.costs[name]
        if name.startswith("linear.") and name not in spent.time_ns:
            name = "linear"
        calls_before, _, before = rows.get(name, (0, 0, NOTHING))
        total = Cost(before.num_bytes + cost.num_bytes, before.num_flops + cost.num_flops)
        rows[name] = (calls_before + num_calls, spent.time_ns.get(name, 0), total)
    for name, time_ns in spent.time_ns.items():
        rows.setdefault(name, (spent.num_kernels[name], time_ns, NOTHING))
    return rows
