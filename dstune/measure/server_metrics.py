"""Measure: what a server says of itself on `/metrics`, read as Prometheus text."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import parser
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample


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


def read_metrics(text: str) -> ServerMetrics:
    """The reading that a `/metrics` page holds; raises `ValueError` for what is none."""
    values: defaultdict[str, float] = defaultdict(float)
    histograms: dict[str, Histogram] = {}
    for family in _families(text):
        name = _without_prefix(family.name)
        if family.type == "histogram":
            histograms[name] = _histogram(family.samples)
            continue
        for sample in family.samples:
            values[_without_prefix(sample.name)] += sample.value
    return ServerMetrics(dict(values), histograms)


def _families(text: str) -> list[Metric]:
    try:
        return list(parser.text_string_to_metric_families(text))
    except (ValueError, LookupError, TypeError) as error:
        # the parser trusts its input, and text that is none breaks it in several ways
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"not Prometheus text: {reason}") from None


def _without_prefix(name: str) -> str:
    return name.rpartition(":")[2]


def _histogram(samples: Iterable[Sample]) -> Histogram:
    """All series of one histogram added up, at the bounds that every series has."""
    series: dict[frozenset[tuple[str, str]], dict[float, float]] = {}
    total = 0.0
    for sample in samples:
        if sample.name.endswith("_sum"):
            total += sample.value
        elif sample.name.endswith("_bucket"):
            labels = frozenset((k, v) for k, v in sample.labels.items() if k != "le")
            bound = float(sample.labels.get("le", "inf"))
            series.setdefault(labels, {})[bound] = sample.value
    shared = set.intersection(*map(set, series.values())) if series else set()
    bounds = tuple(sorted(shared))
    if bounds and bounds[-1] != math.inf:
        raise ValueError("not Prometheus text: a histogram without its +Inf bucket")
    counts = tuple(sum(one[bound] for one in series.values()) for bound in bounds)
    return Histogram(bounds, counts, total)
