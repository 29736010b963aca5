"""Tune: Ctrl-C and SIGTERM end a sweep in good order the first time, at once the second."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def one_gentle_stop() -> Iterator[None]:
    """Turns the first SIGINT or SIGTERM into `KeyboardInterrupt`; the second one kills.

    Only the main thread may use it.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}

    def stop(_number: int, _frame: FrameType | None) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

    for number in numbers:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
