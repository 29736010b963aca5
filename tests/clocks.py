"""Clocks for tests that must not depend on how fast the machine is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class Ticking:
    """A clock that moves by one step at each reading: time is the number of readings."""

    def __init__(self, step_ns: int = 1) -> None:
        self.ns = 0
        self._step_ns = step_ns

    def __call__(self) -> int:
        self.ns += self._step_ns
        return self.ns


class Scripted:
    """A clock that shows the given times, one a reading."""

    def __init__(self, times: Iterable[int]) -> None:
        self._times: Iterator[int] = iter(times)

    def __call__(self) -> int:
        return next(self._times)
