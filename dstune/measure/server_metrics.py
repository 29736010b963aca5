"""Measure: what a server says of itself on `/metrics`, read as Prometheus text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Histogram:
    """Cumulative counts by upper bound, as Prometheus has them; the last bound is infinite."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float

    @property
    def count(self) -> float:
        """Observations."""
        return self.counts[-1] if self.counts else 0.0

    def minus(self, earlier: Histogram) -> Histogram:
        """What was observed since; the bounds of both are the same."""
        counts = tuple(b - a for a, b in zip(earlier.counts, self.counts, strict=True))
        return Histogram(self.bounds, counts, self.sum - earlier.sum)


@dataclass(frozen=True)
class ServerMetrics:
    """One reading: plain values and histograms, by name without the engine's prefix.

    `dstune:time_to_first_token_seconds` and `vllm:time_to_first_token_seconds` are both
    `time_to_first_token_seconds`. Series that differ in labels alone are added up.
    """

    values: Mapping[str, float]
    histograms: Mapping[str, Histogram]
