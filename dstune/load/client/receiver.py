"""Load client: which connections have something to read.

All of them hang on one epoll of their own. While little comes it is looked at whenever something
does. Once things come faster than every `HOLD_NS`, it is looked at once per `HOLD_NS`: a wake of
the loop costs as much as several receives, and the kernel has stamped what waits, so only what one
server sends twice on one connection within that time has one stamp for both.
"""

from __future__ import annotations

import _socket
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

from gevent import monkey

from dstune.load.client.timerfd import TimerFd

HAS_KERNEL_STAMPS = sys.platform == "linux"
SO_TIMESTAMPNS = 35
HOLD_NS = 1_000_000
QUIET_TICKS = 4  # so many looks without anything end the looking by time
_AT_ONCE = 256
_CLOCK_TRIES = 5
_CLOCK_APART_NS = 5_000
_READ = 1  # libev's EV_READ; epoll's EPOLLIN too
Callback = Callable[[], object]


class EpollReceiver:
    """As the module says."""

    def __init__(self, loop: Any) -> None:
        self._epoll: Any = monkey.get_original("select", "epoll")()
        self._poll = self._epoll.poll
        self._callbacks: dict[int, Callback] = {}
        self.now_ns = 0  # of the last look
        self.wall_offset_ns = 0  # wall clock - monotonic clock, then
        self._last_ns = 0
        self._num_quiet = 0
        self._timer = TimerFd(loop, self._tick)
        self._watcher = loop.io(self._epoll.fileno(), _READ)
        self._watcher.start(self._came)
        # the kernel stamps nothing before some socket asks, and begins a moment later: this one
        # asks for as long as anything may be received
        self._asking = _socket.socket()
        self._asking.setsockopt(_socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    def watch(self, fd: int, callback: Callback) -> None:
        """Calls `callback` in the hub as long as there is something to read."""
        self._callbacks[fd] = callback
        self._epoll.register(fd, _READ)

    def unwatch(self, fd: int) -> None:
        """No longer; before the descriptor is closed."""
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def close(self) -> None:
        """Watches nothing any more."""
        self._watcher.stop()
        self._watcher.close()
        self._timer.close()
        self._epoll.close()
        self._asking.close()

    def _came(self) -> None:
        now = time.monotonic_ns()
        self._look()
        if now - self._last_ns < HOLD_NS:
            self._watcher.stop()
            self._num_quiet = 0
            self._timer.set(now + HOLD_NS, HOLD_NS)
        self._last_ns = now

    def _tick(self) -> None:
        if self._look():
            self._num_quiet = 0
            return
        self._num_quiet += 1
        if self._num_quiet >= QUIET_TICKS:
            self._timer.clear()
            self._watcher.start(self._came)

    def _look(self) -> int:
        callbacks = self._callbacks
        events = self._poll(0, _AT_ONCE)
        if events:
            self._read_clocks()
        for fd, _ in events:
            callback = callbacks.get(fd)  # an earlier one may have ended this one
            if callback is not None:
                try:
                    callback()
                except Exception:  # gevent would stop watching for good
                    logging.getLogger(__name__).exception("a receive failed")
                    self.unwatch(fd)
        return len(events)

    def _read_clocks(self) -> None:
        """Both clocks at one moment: not with a preemption between them, which would shift stamps.

        Done anew at every look, so that no step of the wall clock outlives one.
        """
        for _ in range(_CLOCK_TRIES):
            before_ns = time.monotonic_ns()
            wall_ns = time.time_ns()
            after_ns = time.monotonic_ns()
            if after_ns - before_ns < _CLOCK_APART_NS:
                break
        self.now_ns = after_ns
        self.wall_offset_ns = wall_ns - (before_ns + after_ns) // 2


class LoopReceiver:
    """The same by libev's own watchers, where there is no epoll and the kernel stamps nothing."""

    def __init__(self, loop: Any) -> None:
        self.now_ns = 0
        self.wall_offset_ns = 0
        self._loop = loop
        self._watchers: dict[int, Any] = {}

    def watch(self, fd: int, callback: Callback) -> None:
        """As `EpollReceiver.watch`."""
        watcher = self._watchers[fd] = self._loop.io(fd, _READ)
        watcher.start(callback)

    def unwatch(self, fd: int) -> None:
        """As `EpollReceiver.unwatch`."""
        watcher = self._watchers.pop(fd, None)
        if watcher is not None:
            watcher.stop()
            watcher.close()

    def close(self) -> None:
        """As `EpollReceiver.close`."""
        for fd in list(self._watchers):
            self.unwatch(fd)


Receiver = EpollReceiver | LoopReceiver


def make_receiver(loop: Any) -> Receiver:
    """The one for this system."""
    return EpollReceiver(loop) if HAS_KERNEL_STAMPS else LoopReceiver(loop)
