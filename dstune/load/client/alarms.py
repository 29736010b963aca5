"""Load client: waking at a monotonic time, to well under a millisecond.

However many moments there are, they share one timer.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from gevent.hub import get_hub

from dstune.load.client.timerfd import make_timer

_KEPT_CANCELLED = 1024  # beyond this many, and most of the heap, they are thrown out


class Alarm:
    """A moment to come; `cancel` before it, and nothing happens."""

    __slots__ = ("_alarms", "callback", "due_ns")

    def __init__(self, alarms: Alarms, due_ns: int, callback: Callable[[], object]) -> None:
        self._alarms = alarms
        self.due_ns = due_ns
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Forgets what was to happen."""
        if self.callback is not None:
            self.callback = None
            self._alarms.cancelled()


class Alarms:
    """All moments to come of one process, in order. Callbacks run in the hub and may not block."""

    def __init__(self) -> None:
        hub: Any = get_hub()
        self._heap: list[tuple[int, int, Alarm]] = []
        self._num_cancelled = 0
        self._count = count()
        self._armed_ns: int | None = None
        self._timer = make_timer(hub.loop, self._fire)

    @property
    def next_ns(self) -> int | None:
        """The next moment, None when there is none."""
        heap = self._heap
        while heap and heap[0][2].callback is None:
            heapq.heappop(heap)
            self._num_cancelled -= 1
        return heap[0][0] if heap else None

    def at(self, due_ns: int, callback: Callable[[], object]) -> Alarm:
        """Calls `callback` in the hub at `due_ns`; at once, but not yet here, when that is past."""
        alarm = Alarm(self, due_ns, callback)
        heapq.heappush(self._heap, (due_ns, next(self._count), alarm))
        if self._armed_ns is None or due_ns < self._armed_ns:
            self._arm()
        return alarm

    def cancelled(self) -> None:
        """One more of them is; deadlines far away must not pile up."""
        self._num_cancelled += 1
        if self._num_cancelled > _KEPT_CANCELLED and self._num_cancelled * 2 > len(self._heap):
            self._heap[:] = [one for one in self._heap if one[2].callback is not None]
            heapq.heapify(self._heap)
            self._num_cancelled = 0

    def now_ns(self) -> int:
        """The clock that moments are of."""
        return time.monotonic_ns()

    def is_past(self, due_ns: int) -> bool:
        """Whether a moment has come."""
        return time.monotonic_ns() >= due_ns

    def close(self) -> None:
        """Stops the timer."""
        self._timer.close()

    def _fire(self) -> None:
        self._armed_ns = None
        heap = self._heap
        now = time.monotonic_ns()
        while heap and heap[0][0] <= now:
            alarm = heapq.heappop(heap)[2]
            callback, alarm.callback = alarm.callback, None
            if callback is None:
                self._num_cancelled -= 1
                continue
            try:
                callback()
            except Exception:  # gevent would stop the timer for good
                logging.getLogger(__name__).exception("an alarm failed")
        self._arm()

    def _arm(self) -> None:
        due_ns = self.next_ns
        if due_ns is not None and due_ns != self._armed_ns:
            self._armed_ns = due_ns
            self._timer.set(max(due_ns, 1))
