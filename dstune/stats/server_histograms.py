"""Stats: a server's own histograms over one load, in which a percentile is known as a bucket.

Never a figure of dstune's (those come from raw samples); evidence beside them. Names are vLLM's.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

from dstune.measure.record import ServerLatency
from dstune.measure.server_metrics import Histogram, ServerMetrics

TTFT = "time_to_first_token_seconds"
PREFIX_HITS = "prefix_cache_hits"  # tokens
PREFIX_QUERIES = "prefix_cache_queries"  # tokens
LATENCIES = {
    "service_ttft": (TTFT,),
    "tpot": ("request_time_per_output_token_seconds",),
    "itl": ("inter_token_latency_seconds", "time_per_output_token_seconds"),  # new and old name
    "e2e": ("e2e_request_latency_seconds",),
    "queue": ("request_queue_time_seconds",),
    "prefill": ("request_prefill_time_seconds",),
    "decode": ("request_decode_time_seconds",),
}
COUNTERS = (PREFIX_HITS, PREFIX_QUERIES, "num_preemptions", "prompt_tokens", "generation_tokens")
PERCENTS = (50.0, 90.0, 99.0)

Reading = tuple[ServerMetrics, ServerMetrics]
"""Before and after a load."""


def rank_of(num: float, percent: float) -> int:
    """Which of `num` sorted values is the percentile, counted from 1: the nearest rank."""
    return max(1, math.ceil(num * percent / 100 - 1e-9))


def bucket_at(histogram: Histogram, rank: float) -> int:
    """The bucket in which the `rank`-th smallest value lies, from 0."""
    return min(bisect_left(histogram.counts, rank), len(histogram.counts) - 1)


def bounds_s(histogram: Histogram, first: int, last: int) -> tuple[float, float]:
    """Lower bound of bucket `first` and upper bound of bucket `last`, which may lie outside."""
    lower = histogram.bounds[first - 1] if first > 0 else 0.0
    return lower, histogram.bounds[last] if last < len(histogram.bounds) else math.inf


def since(server: Reading, name: str) -> Histogram | None:
    """What a histogram counted between two readings; None when it is missing or empty."""
    before, after = (one.histograms.get(name) for one in server)
    if after is None or (before is not None and before.bounds != after.bounds):
        return None
    found = after if before is None else after.minus(before)
    return found if found.count > 0 else None


def rise(server: Reading, name: str) -> float | None:
    """By how much a counter rose; None when the server has none. Prometheus adds `_total`."""
    before, after = server
    for spelled in (f"{name}_total", name):
        if spelled in after.values:
            return after.values[spelled] - before.values.get(spelled, 0.0)
    return None


def server_latencies(readings: Sequence[Reading]) -> dict[str, ServerLatency]:
    """Its histograms over all loads, under the client's name of the same quantity."""
    found: dict[str, ServerLatency] = {}
    for name, spellings in LATENCIES.items():
        counted = [_first(server, spellings) for server in readings]
        histogram = _sum([one for one in counted if one is not None])
        if histogram is None:
            continue
        buckets = {}
        for percent in PERCENTS:
            at = bucket_at(histogram, rank_of(histogram.count, percent))
            low, high = bounds_s(histogram, at, at)
            buckets[f"p{percent:g}"] = (1e3 * low, 1e3 * high if math.isfinite(high) else None)
        found[name] = ServerLatency(
            num=round(histogram.count),
            mean_ms=1e3 * histogram.sum / histogram.count,
            buckets_ms=buckets,
        )
    return found


def _first(server: Reading, spellings: Sequence[str]) -> Histogram | None:
    found = (since(server, one) for one in spellings)
    return next((one for one in found if one is not None), None)


def _sum(histograms: Sequence[Histogram]) -> Histogram | None:
    """One histogram of several; those with other bounds than the last one's are left out."""
    if not histograms:
        return None
    bounds = histograms[-1].bounds
    alike = [one for one in histograms if one.bounds == bounds]
    counts = tuple(sum(column) for column in zip(*(one.counts for one in alike), strict=True))
    return Histogram(bounds, counts, sum(one.sum for one in alike))


def server_counts(readings: Sequence[Reading]) -> dict[str, float]:
    """What its counters rose by over all loads, those that it has."""
    found: dict[str, float] = {}
    for name in COUNTERS:
        rises = [one for server in readings if (one := rise(server, name)) is not None]
        if rises:
            found[name] = sum(rises)
    return found
