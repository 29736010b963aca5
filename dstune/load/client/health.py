"""Load client: how well this process keeps up, by a heartbeat in its own loop."""

from __future__ import annotations

import time
from array import array

from gevent.hub import get_hub

from dstune.load.client.receiver import HAS_KERNEL_STAMPS
from dstune.load.client.timerfd import make_timer
from dstune.measure.client_health import ClientHealth

BEAT_NS = 5_000_000


class Heart:
    """Beats every 5 ms and records how late; a beat that was missed is as late as its place."""

    def __init__(self) -> None:
        self._lags: array[int] = array("q")
        self._start_ns = time.monotonic_ns()
        self._start_cpu_s = time.process_time()
        self._due_ns = self._start_ns + BEAT_NS
        self._timer = make_timer(get_hub().loop, self._beat)
        self._timer.set(self._due_ns, BEAT_NS)

    def stop(self, process: int) -> ClientHealth:
        """Ends the beating and returns what it showed."""
        self._timer.close()
        wall_ns = time.monotonic_ns() - self._start_ns
        lags = sorted(self._lags) or [0]
        return ClientHealth(
            process=process,
            cpu_s=time.process_time() - self._start_cpu_s,
            wall_s=wall_ns / 1e9,
            heartbeat_lag_p50_ns=lags[len(lags) // 2],
            heartbeat_lag_p99_ns=lags[len(lags) * 99 // 100],
            heartbeat_lag_max_ns=lags[-1],
            has_kernel_stamps=HAS_KERNEL_STAMPS,
        )

    def _beat(self) -> None:
        now = time.monotonic_ns()
        while self._due_ns <= now:
            self._lags.append(now - self._due_ns)
            self._due_ns += BEAT_NS
