"""How many requests per second come in: a token bucket that adapts to the load.

Both of its quantities follow the load (0: idle, 1: full), with base = one second's worth:

    size   = base * (1 + 0.5 * (1 - load))
    refill = limit * (0.8 if load > 0.7 else 1.2)

Above the asked limit it refills only to make up for quieter moments: a second bucket, refilled
at the limit itself, keeps the rate over the long run at `limit` under low load; under high load
it is 0.8 of that.
"""

from __future__ import annotations

HIGH_LOAD = 0.7
LONG_RUN_S = 10.0  # over which the limit itself is kept


class AdaptiveBucket:
    """Admits requests; one token each."""

    def __init__(self, limit_per_s: float, now_s: float) -> None:
        self._limit = limit_per_s
        self._base = max(1.0, limit_per_s)
        self._tokens = self.size(0.0)
        self._long_run_size = max(self._tokens, limit_per_s * LONG_RUN_S)
        self._long_run = self._tokens  # a start is no quiet moment
        self._at_s = now_s

    def size(self, load: float) -> float:
        """The largest burst under that load."""
        return self._base * (1 + 0.5 * (1 - min(max(load, 0.0), 1.0)))

    def refill_per_s(self, load: float) -> float:
        """Tokens that come back per second under that load."""
        return self._limit * (0.8 if load > HIGH_LOAD else 1.2)

    def take(self, now_s: float, load: float) -> float:
        """0 where a request may come in now, or the seconds until one may."""
        elapsed = max(0.0, now_s - self._at_s)
        self._at_s = now_s
        refill = self.refill_per_s(load)
        self._tokens = min(self.size(load), self._tokens + refill * elapsed)
        self._long_run = min(self._long_run_size, self._long_run + self._limit * elapsed)
        wait_s = max((1 - self._tokens) / refill, (1 - self._long_run) / self._limit)
        if wait_s > 1e-9:
            return wait_s
        self._tokens -= 1
        self._long_run -= 1
        return 0.0
