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

from gevent.hub import Hub, get_hub

from dstune.load.client.timerfd import make_timer


class Alarm:
    """A moment to come; `cancel` before it, and nothing happens."""

    __slots__ = ("callback", "due_ns")

    def __init__(self, due_ns: int, callback: Callable[[], object]) -> None:
        self.due_ns = due_ns
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Forgets what was to happen."""
        self.callback = None


class Alarms:
    """All moments to come of one process, in order. Callbacks run in the hub and may not block."""

    def __init__(self, hub: Hub | None = None) -> None:
        self._hub: Any = hub or get_hub()
        self._heap: list[tuple[int, int, Alarm]] = []
        self._count = count()
        self._armed_ns: int | None = None
        self._timer = make_timer(self._hub.loop, self._fire)

    @property
    def next_ns(self) -> int | None:
        """The next moment, None when there is none."""
        heap = self._heap
        while heap and heap[0][2].callback is None:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def at(self, due_ns: int, callback: Callable[[], object]) -> Alarm:
        """Calls `callback` in the hub at `due_ns`; at once, but not yet here, when that is past."""
        alarm = Alarm(due_ns, callback)
        heapq.heappush(self._heap, (due_ns, next(self._count), alarm))
        if self._armed_ns is None or due_ns < self._armed_ns:
            self._arm()
        return alarm

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
            callback = heapq.heappop(heap)[2].callback
            if callback is not None:
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
