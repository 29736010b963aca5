"""Load client: timers with absolute monotonic deadlines, to well under a millisecond.

libev's own timers count in the whole milliseconds of epoll, and after a blocked second fire early
by its stale clock. A timerfd does neither; Python itself has it from 3.13 on.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Any

NS_PER_S = 1_000_000_000
_READ = 1  # libev's EV_READ
_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _Time), ("value", _Time))


class TimerFd:
    """Calls back in the hub at an absolute time, to well under a millisecond."""

    def __init__(self, loop: Any, callback: Callable[[], None]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._settime = libc.timerfd_settime
        self._fd = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._spec = _TimerSpec()
        self._callback = callback
        self._watcher = loop.io(self._fd, _READ)
        self._watcher.start(self._expired)

    def set(self, due_ns: int, interval_ns: int = 0) -> None:
        """Expires at `due_ns`, then every `interval_ns` if that is set, in place of before."""
        value, interval = self._spec.value, self._spec.interval
        value.seconds, value.nanoseconds = divmod(due_ns, NS_PER_S)
        interval.seconds, interval.nanoseconds = divmod(interval_ns, NS_PER_S)
        self._settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None)

    def clear(self) -> None:
        """Expires no more."""
        self.set(0)

    def close(self) -> None:
        """Closes the descriptor."""
        self._watcher.stop()
        self._watcher.close()
        os.close(self._fd)

    def _expired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # it was set anew since
        self._callback()


class LoopTimer:
    """libev's timer, where there is no timerfd: late by up to a millisecond."""

    def __init__(self, loop: Any, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._timer: Any = None

    def set(self, due_ns: int, interval_ns: int = 0) -> None:
        """As `TimerFd.set`."""
        self.clear()
        self._loop.update_now()  # else its stale clock makes it early
        left_s = max(due_ns - time.monotonic_ns(), 0) / NS_PER_S
        self._timer = self._loop.timer(left_s)
        self._timer.start(self._expired, due_ns, interval_ns)

    def clear(self) -> None:
        """As `TimerFd.clear`."""
        if self._timer is not None:
            self._timer.stop()
            self._timer.close()
            self._timer = None

    def close(self) -> None:
        """As `TimerFd.close`."""
        self.clear()

    def _expired(self, due_ns: int, interval_ns: int) -> None:
        if time.monotonic_ns() < due_ns:
            self.set(due_ns, interval_ns)
            return
        if interval_ns:
            self.set(due_ns + interval_ns, interval_ns)
        self._callback()


Timer = TimerFd | LoopTimer


def make_timer(loop: Any, callback: Callable[[], None]) -> Timer:
    """The one for this system."""
    return TimerFd(loop, callback) if sys.platform == "linux" else LoopTimer(loop, callback)
