"""Gate: what a paired comparison is asked to do, and who watches it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from dstune.gate.sides import Side
from dstune.measure.comparison import MetricChange, Thresholds
from dstune.measure.host import CpuReading, read_cpu
from dstune.stats.paired import GATED, Gated
from dstune.target.target import Target
from dstune.tune.observer import Observer


class GateObserver(Observer, Protocol):
    """Receives a gate's events in order, besides those of every measurement."""

    def pair(self, number: int, most: int, eta_s: float | None) -> None:
        """Pair `number`, counted from 1, begins; the last look is at `most`."""

    def looked(self, changes: tuple[MetricChange, ...]) -> None:
        """What the pairs so far say, at a look."""


DEFAULTS = Thresholds()


@dataclass(frozen=True)
class GatePlan:
    """How a comparison is made and judged."""

    thresholds: Thresholds = DEFAULTS
    metrics: tuple[Gated, ...] = GATED
    num_loads: int = 1  # per side and pair, interleaved A B B A
    has_both_up: bool = True  # within a pair; on a GPU both would want its whole memory
    budget_s: float | None = None
    quality_windows: int = 8  # 0: quality is not compared
    explains: bool = True
    seed: int = 0  # of the order within pairs


@dataclass(frozen=True)
class GateSetting:
    """What a gate stands on, each part replaceable by a test."""

    open_side: Callable[[Side, bool], Target]  # whether it is traced
    observer: GateObserver
    corpus: Callable[[], str]
    environment: dict[str, Any] = field(default_factory=dict)
    clock_ns: Callable[[], int] = time.monotonic_ns
    read_cpu: Callable[[], CpuReading] = read_cpu
