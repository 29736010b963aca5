"""Load client: a timerfd on the monotonic clock, which Python itself has from 3.13 on."""

from __future__ import annotations

import ctypes
import os
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
