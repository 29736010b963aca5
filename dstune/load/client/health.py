"""Load client: how well this process keeps up, by a heartbeat in its own loop."""

from __future__ import annotations

import time
from array import array

from dstune.load.client.alarms import Alarm, Alarms
from dstune.load.client.receiver import HAS_KERNEL_STAMPS
from dstune.measure.client_health import ClientHealth

BEAT_NS = 5_000_000


class Heart:
    """Beats every 5 ms and records how late; a beat that was missed is as late as its place."""

    def __init__(self, alarms: Alarms) -> None:
        self._alarms = alarms
        self._lags: array[int] = array("q")
        self._start_ns = time.monotonic_ns()
        self._start_cpu_s = time.process_time()
        self._alarm: Alarm = alarms.at(self._start_ns + BEAT_NS, self._beat)

    def stop(self, process: int) -> ClientHealth:
        """Ends the beating and returns what it showed."""
        self._alarm.cancel()
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
        due_ns, now = self._alarm.due_ns, time.monotonic_ns()
        while due_ns <= now:
            self._lags.append(now - due_ns)
            due_ns += BEAT_NS
        self._alarm = self._alarms.at(due_ns, self._beat)
