"""Load client: where a greenlet blocks, so that a deadline or a stop can end its wait."""

from __future__ import annotations

from typing import Any

import gevent
from gevent.hub import get_hub

from dstune.load.client.alarms import Alarms


class DeadlinePassed(Exception):
    """A request's deadline came while its greenlet waited."""


class Stopped(Exception):
    """The run ended while a greenlet waited."""


class Waiter:
    """One greenlet's blocking point. `resume` and `interrupt` are called from the hub alone."""

    __slots__ = ("_alarms", "_greenlet", "_hub")

    def __init__(self, alarms: Alarms) -> None:
        self._alarms = alarms
        self._hub: Any = get_hub()
        self._greenlet: Any = None

    def block(self) -> None:
        """Waits for `resume`; raises what `interrupt` is given."""
        self._greenlet = gevent.getcurrent()
        try:
            self._hub.switch()
        finally:
            self._greenlet = None

    def resume(self) -> None:
        """Ends the wait, if there is one."""
        if self._greenlet is not None:
            self._greenlet.switch()

    def interrupt(self, error: Exception) -> None:
        """Raises `error` where the greenlet waits; without a wait nothing happens."""
        if self._greenlet is not None:
            self._greenlet.throw(error)

    def until(self, due_ns: int) -> None:
        """Waits for a monotonic time; returns at once when it is past."""
        if self._alarms.is_past(due_ns):
            return
        alarm = self._alarms.at(due_ns, self.resume)
        try:
            while not self._alarms.is_past(due_ns):
                self.block()
        finally:
            alarm.cancel()

    def ready(self, fd: int, events: int) -> bool:
        """Waits until libev reports one of `events` (1 read, 2 write) on a descriptor.

        False: something else resumed the wait before.
        """
        watcher = self._hub.loop.io(fd, events)
        fired = []

        def note() -> None:
            fired.append(True)
            watcher.stop()
            self.resume()

        watcher.start(note)
        try:
            self.block()
        finally:
            watcher.stop()
            watcher.close()
        return bool(fired)
