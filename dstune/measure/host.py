"""Measure: what else the machine did during a repetition, the evidence for a busy host."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

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


def reader_for(target: str) -> Callable[[], CpuReading]:
    """`read_cpu` that counts a server at a loopback URL, with its children, as our own.

    Where its processes cannot be found (it ended, or is another user's), nobody can be told from
    it: then all that the machine did counts as own.
    """
    parts = urlsplit(target)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if parts.scheme not in ("http", "https") or not is_loopback(parts.hostname or ""):
        return read_cpu

    def read() -> CpuReading:
        reading = read_cpu()
        server_s = _listener_s(port)
        own_s = reading.busy_s if server_s is None else reading.own_s + server_s
        return replace(reading, own_s=own_s)

    return read


def is_loopback(host: str) -> bool:
    """Whether a host name means this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _own_s() -> float:
    mine = psutil.Process().cpu_times()
    return float(mine.children_user + mine.children_system + _tree_s(psutil.Process()))


def _tree_s(root: psutil.Process) -> float:
    """CPU seconds of a process and of all that descend from it and still run."""
    total = 0.0
    for one in (root, *root.children(recursive=True)):
        try:
            times = one.cpu_times()
        except psutil.Error:
            continue  # it ended between listing and reading
        total += times.user + times.system
    return total


def _listener_s(port: int) -> float | None:
    """CPU seconds of whoever listens on a port, outside our own tree; None when nobody is found."""
    ours = {one.pid for one in (psutil.Process(), *psutil.Process().children(recursive=True))}
    try:
        pids = {
            one.pid
            for one in psutil.net_connections("tcp")
            if one.status == psutil.CONN_LISTEN and one.laddr.port == port and one.pid
        }
        # of a server that forks, each process listens: the tree of the oldest holds the others
        processes = [psutil.Process(pid) for pid in pids]
        roots = [one for one in processes if not {each.pid for each in one.parents()} & pids]
    except psutil.Error:
        return None
    if not roots:
        return None
    return sum(_tree_s(one) for one in roots if one.pid not in ours)


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
