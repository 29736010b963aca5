"""Times functions on the device at hand, taking turns, and measures what the device can do.

Turns, because a device's clock drifts: two functions are comparable when each run of one stands
beside a run of the other.
"""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import torch

Call = Callable[[], Any]

COPY_BYTES = {"cuda": 1 << 30, "cpu": 256 << 20}  # far beyond the caches
MATMUL_SIZE = {"cuda": 8192, "cpu": 1024}
FLUSH_BYTES = 256 << 20  # more than any L2: 50 MB on an H100, 126 MB on a B200


@dataclass(frozen=True)
class Times:
    """Seconds of one function's runs."""

    median_s: float
    low_s: float  # 10th percentile
    high_s: float  # 90th percentile
    num_runs: int
    how: str  # graph, events, or clock


@dataclass(frozen=True)
class Ceilings:
    """What the device reaches in this very run."""

    copy_bytes_per_s: float  # read and written, counted both
    matmul_flops_per_s: Mapping[str, float]  # by dtype


class Timer(Protocol):
    """Times functions in turns."""

    def time(self, calls: Mapping[str, Call]) -> dict[str, Times]:
        """Return the times of each, warmed up before."""
        ...


class CpuTimer:
    """Wall-clock time."""

    def __init__(
        self,
        budget_s: float = 0.5,
        max_runs: int = 200,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._budget_s = budget_s
        self._max_runs = max_runs
        self._clock = clock

    def time(self, calls: Mapping[str, Call]) -> dict[str, Times]:
        """Return the times of each; a run of all of them warms up."""
        runs: dict[str, list[float]] = {name: [] for name in calls}
        for call in calls.values():
            call()
        start = self._clock()
        while len(next(iter(runs.values()))) < self._max_runs:
            for name, call in calls.items():
                began = self._clock()
                call()
                runs[name].append(self._clock() - began)
            has_enough = len(next(iter(runs.values()))) >= 5
            if has_enough and self._clock() - start > self._budget_s * len(calls):
                break
        return {name: summary(one, "clock") for name, one in runs.items()}


class CudaTimer:
    """Time between two events on the GPU, caches flushed before each run.

    A function is captured into a CUDA graph where it can be, so that the host's overhead, which
    decoding under graphs does not pay, is not in its time; `Times.how` says which it was.
    """

    def __init__(self, device: torch.device, budget_s: float = 0.5, max_runs: int = 200) -> None:
        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=device)
        self._budget_s = budget_s
        self._max_runs = max_runs

    def time(self, calls: Mapping[str, Call]) -> dict[str, Times]:
        """Return the times of each."""
        ready = {name: self._captured(call) for name, call in calls.items()}
        events: dict[str, list[tuple[Any, Any]]] = {name: [] for name in calls}
        for name, (call, _) in ready.items():
            for _ in range(3):
                self._run(call, events[name])
        torch.cuda.synchronize()
        slowest_s = max(one[-1][0].elapsed_time(one[-1][1]) for one in events.values()) / 1e3
        num_runs = max(10, min(self._max_runs, int(self._budget_s / max(slowest_s, 1e-6))))
        events = {name: [] for name in calls}
        for _ in range(num_runs):
            for name, (call, _) in ready.items():
                self._run(call, events[name])
        torch.cuda.synchronize()
        return {
            name: summary([a.elapsed_time(b) / 1e3 for a, b in pairs], ready[name][1])
            for name, pairs in events.items()
        }

    def _run(self, call: Call, events: list[tuple[Any, Any]]) -> None:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._flush.zero_()
        begin.record()
        call()
        end.record()
        events.append((begin, end))

    def _captured(self, call: Call) -> tuple[Call, str]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                call()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                call()
        except RuntimeError:  # it waits for the GPU inside, as torch's own loops do
            torch.cuda.synchronize()
            return call, "events"
        return graph.replay, "graph"


def summary(seconds: list[float], how: str) -> Times:
    """Return the median and how far the runs spread."""
    ordered = sorted(seconds)
    last = len(ordered) - 1
    low, high = (ordered[round(share * last)] for share in (0.1, 0.9))
    return Times(statistics.median(ordered), low, high, len(ordered), how)


def timer_for(device: torch.device) -> Timer:
    """Return the timer of a device."""
    return CudaTimer(device) if device.type == "cuda" else CpuTimer()


def measure_ceilings(device: torch.device, timer: Timer, dtypes: list[torch.dtype]) -> Ceilings:
    """Measure a copy and a matmul per dtype by the same timer as everything else."""
    source = torch.ones(COPY_BYTES[device.type], dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    copy = timer.time({"copy": lambda: target.copy_(source)})["copy"]
    rates = {}
    for dtype in dtypes:
        size = MATMUL_SIZE[device.type]
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        took = timer.time({"matmul": lambda a=a, b=b: a @ b})["matmul"]  # type: ignore[misc]
        rates[str(dtype).removeprefix("torch.")] = 2 * size**3 / took.median_s
    return Ceilings(2 * source.nbytes / copy.median_s, rates)
