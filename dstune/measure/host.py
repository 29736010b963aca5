"""Measure: what else the machine did during a repetition, the evidence for a busy host."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil

from dstune.measure.record import HostLoad

BUSY_FOREIGN_SHARE = 0.10
BUSY_STEAL_SHARE = 0.02
CONTENDED_FOREIGN_SHARE = 0.25  # half of one core of two: no figure of a CPU engine survives it
CONTENDED_STEAL_SHARE = 0.05


@dataclass(frozen=True)
class CpuReading:
    """CPU seconds since boot, over all cores: everyone's, the hypervisor's, and our own."""

    wall_s: float
    busy_s: float
    steal_s: float
    own_s: float
    num_cores: int


def read_cpu() -> CpuReading:
    """Reads the machine's and this process tree's CPU clocks; costs a few milliseconds."""
    times = psutil.cpu_times()
    fields = ("user", "nice", "system", "irq", "softirq")  # Linux counts guests as user
    return CpuReading(
        wall_s=time.monotonic(),
        busy_s=sum(getattr(times, field, 0.0) for field in fields),
        steal_s=getattr(times, "steal", 0.0),
        own_s=_own_s(),
        num_cores=psutil.cpu_count() or 1,
    )


def _own_s() -> float:
    me = psutil.Process()
    mine = me.cpu_times()
    total = mine.user + mine.system + mine.children_user + mine.children_system
    for child in me.children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.Error:
            continue  # it ended between listing and reading
        total += times.user + times.system
    return float(total)


def host_load(before: CpuReading, after: CpuReading) -> HostLoad:
    """What happened between two readings, as shares of all cores."""
    available = max(after.wall_s - before.wall_s, 1e-9) * after.num_cores
    own = (after.own_s - before.own_s) / available
    busy = (after.busy_s - before.busy_s) / available
    steal = (after.steal_s - before.steal_s) / available
    return HostLoad(
        foreign_cpu_share=round(min(max(busy - own, 0.0), 1.0), 4),
        steal_share=round(min(max(steal, 0.0), 1.0), 4),
        own_cpu_share=round(min(max(own, 0.0), 1.0), 4),
    )


def is_busy(load: HostLoad) -> bool:
    """Whether others took enough to move a figure."""
    return load.foreign_cpu_share > BUSY_FOREIGN_SHARE or load.steal_share > BUSY_STEAL_SHARE


def is_contended(load: HostLoad) -> bool:
    """Whether others took so much that a figure says more about them."""
    return (
        load.foreign_cpu_share > CONTENDED_FOREIGN_SHARE or load.steal_share > CONTENDED_STEAL_SHARE
    )
