"""Load client: what was received is parsed here, a little at a time, out of the timing path.

One greenlet parses for all exchanges, in turn, and lets the loop receive after every few pieces:
parsing a whole answer in one go, or all answers at once, would hold the loop for many ms.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Any, Protocol

import gevent
from gevent.hub import get_hub

PIECES_PER_TURN = 32


class Parsed(Protocol):
    """Something whose pieces wait to be parsed."""

    def parse(self, limit: int) -> int:
        """Parses up to `limit` pieces and returns how many; with some left it pushes itself."""

    def fail(self) -> None:
        """Parsing raised what it should not."""


class ParseQueue:
    """Exchanges with pieces to parse, first come first served."""

    def __init__(self) -> None:
        self._waiting: deque[Parsed] = deque()
        self._hub: Any = get_hub()
        self._is_idle = False
        self._greenlet: Any = gevent.spawn(self._run)

    def push(self, one: Parsed) -> None:
        """Has `one` parsed soon. It must not be waiting already."""
        self._waiting.append(one)
        if self._is_idle:
            self._is_idle = False
            self._hub.loop.run_callback(self._greenlet.switch)

    def close(self) -> None:
        """Ends the greenlet."""
        self._greenlet.kill()

    def _run(self) -> None:
        left = PIECES_PER_TURN
        while True:
            while self._waiting:
                one = self._waiting.popleft()
                try:
                    left -= one.parse(left)
                except Exception:
                    logging.getLogger(__name__).exception("an answer could not be parsed")
                    one.fail()
                if left <= 0:
                    gevent.sleep(0)
                    left = PIECES_PER_TURN
            self._is_idle = True
            self._hub.switch()
