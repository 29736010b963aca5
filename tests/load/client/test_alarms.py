"""Waking on time, in this very process: gevent's hub runs here, nothing is patched."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import gevent
import pytest
from gevent.hub import get_hub

from dstune.load.client import alarms as module
from dstune.load.client.alarms import Alarms
from dstune.load.client.timerfd import LoopTimer, Timer, TimerFd
from dstune.load.client.waiter import Stopped, Waiter

MS = 1_000_000


@pytest.fixture(params=[TimerFd, LoopTimer])
def alarms(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Alarms]:
    def make(loop: object, callback: Callable[[], None]) -> Timer:
        timer: Timer = request.param(loop, callback)
        return timer

    monkeypatch.setattr(module, "make_timer", make)
    made = Alarms()
    yield made
    made.close()


def test_they_come_in_order_and_never_early(alarms: Alarms) -> None:
    start = time.monotonic_ns()
    came: list[tuple[int, int]] = []

    def at(offset_ms: int) -> None:
        alarms.at(start + offset_ms * MS, lambda: came.append((offset_ms, time.monotonic_ns())))

    for offset in (30, 10, 20, 0, -5, 40):
        at(offset)
    cancelled = alarms.at(start + 15 * MS, lambda: came.append((15, 0)))
    cancelled.cancel()
    gevent.sleep(0.1)
    assert [offset for offset, _ in came] == [-5, 0, 10, 20, 30, 40]
    assert all(now >= start + offset * MS for offset, now in came)


def test_one_that_raises_stops_none_after_it(
    alarms: Alarms, caplog: pytest.LogCaptureFixture
) -> None:
    came: list[int] = []

    def fail() -> None:
        raise ValueError("on purpose")

    now = time.monotonic_ns()
    alarms.at(now + MS, fail)
    alarms.at(now + 2 * MS, lambda: came.append(1))
    gevent.sleep(0.05)
    assert came == [1] and "on purpose" in caplog.text


def test_none_is_early_after_a_blocked_stretch(alarms: Alarms) -> None:
    gevent.sleep(0)
    time.sleep(0.1)  # the loop's own clock stands still meanwhile
    due = time.monotonic_ns() + 50 * MS
    came: list[int] = []
    alarms.at(due, lambda: came.append(time.monotonic_ns()))
    gevent.sleep(0.2)
    assert len(came) == 1 and came[0] >= due


def test_a_wait_ends_by_time_or_by_an_interrupt_and_not_by_a_stray_resume(alarms: Alarms) -> None:
    waiter = Waiter(alarms)
    ends: list[str] = []

    def wait(due_ns: int) -> None:
        try:
            waiter.until(due_ns)
            ends.append("time" if time.monotonic_ns() >= due_ns else "early")
        except Stopped:
            ends.append("stopped")

    first = gevent.spawn(wait, time.monotonic_ns() + 20 * MS)
    gevent.sleep(0.002)
    get_hub().loop.run_callback(waiter.resume)
    first.join()
    second = gevent.spawn(wait, time.monotonic_ns() + 10_000 * MS)
    gevent.sleep(0.002)
    get_hub().loop.run_callback(waiter.interrupt, Stopped())
    second.join(5)
    waiter.until(time.monotonic_ns() - 1)
    assert ends == ["time", "stopped"]


def test_deadlines_that_never_came_do_not_pile_up(alarms: Alarms) -> None:
    far = time.monotonic_ns() + 600_000 * MS
    came: list[int] = []
    alarms.at(time.monotonic_ns() + 20 * MS, lambda: came.append(1))
    for _ in range(20_000):
        alarms.at(far, lambda: came.append(2)).cancel()
    assert len(alarms._heap) < 3_000
    gevent.sleep(0.05)
    assert came == [1]
