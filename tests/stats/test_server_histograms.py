"""A server's histograms by hand: which bucket a percentile lies in, and what rose in between."""

from __future__ import annotations

import math

import pytest

from dstune.measure.server_metrics import Histogram, ServerMetrics
from dstune.stats.server_histograms import (
    bounds_s,
    bucket_at,
    rank_of,
    rise,
    server_counts,
    server_latencies,
    since,
)

BOUNDS_S = (0.01, 0.1, 1.0, math.inf)


def reading(*counts: float, total: float = 0.0, **values: float) -> ServerMetrics:
    named = {"time_to_first_token_seconds": Histogram(BOUNDS_S, counts, total)} if counts else {}
    return ServerMetrics(values, named)


def test_ranks_are_the_nearest_ones_from_1() -> None:
    assert [rank_of(100, percent) for percent in (50, 90, 99)] == [50, 90, 99]
    assert [rank_of(64, percent) for percent in (50, 90, 99)] == [32, 58, 64]
    assert [rank_of(1, percent) for percent in (50, 90, 99)] == [1, 1, 1]
    assert rank_of(1000, 99.9) == 999  # in floating point 1000 * .999 is a little more


def test_a_bucket_holds_the_ranks_up_to_its_cumulative_count() -> None:
    histogram = Histogram(BOUNDS_S, (2, 5, 5, 6), 0)
    assert [bucket_at(histogram, rank) for rank in (1, 2, 3, 5, 6, 7)] == [0, 0, 1, 1, 3, 3]


def test_bounds_may_lie_outside() -> None:
    histogram = Histogram(BOUNDS_S, (1, 2, 3, 4), 0)
    assert bounds_s(histogram, -1, 0) == (0.0, 0.01)
    assert bounds_s(histogram, 1, 2) == (0.01, 1.0)
    assert bounds_s(histogram, 3, 4) == (1.0, math.inf)


def test_only_what_came_between_two_readings_counts() -> None:
    name = "time_to_first_token_seconds"
    found = since((reading(5, 5, 5, 5, total=0.02), reading(5, 8, 9, 9, total=1.02)), name)
    assert found is not None and (found.counts, found.sum) == ((0, 3, 4, 4), pytest.approx(1.0))
    assert since((reading(), reading(1, 1, 1, 1)), name) is not None  # it began with the first
    assert since((reading(5, 5, 5, 5), reading(5, 5, 5, 5)), name) is None
    assert since((reading(5, 5, 5, 5), reading(1, 1, 1, 1)), name) is None  # restarted
    assert since((reading(1, 1, 1, 1), reading()), name) is None
    other = ServerMetrics({}, {name: Histogram((1.0, math.inf), (1, 9), 0)})
    assert since((other, reading(2, 2, 2, 2)), name) is None


def test_counters_are_found_under_either_spelling() -> None:
    before, after = reading(a_total=3.0, b=1.0), reading(a_total=5.0, b=1.5)
    assert (rise((before, after), "a"), rise((before, after), "b")) == (2.0, 0.5)
    assert rise((before, after), "c") is None
    assert rise((reading(), after), "a") == 5.0


def test_latencies_are_buckets_in_ms_under_the_clients_names() -> None:
    """60 of 100 within 10 ms, 35 within 100 ms, 5 beyond a second."""
    pair = (reading(0, 0, 0, 0), reading(60, 95, 95, 100, total=12.0))
    (name, found), *rest = server_latencies([pair]).items()
    assert (name, rest) == ("service_ttft", [])
    assert (found.num, found.mean_ms) == (100, pytest.approx(120))
    assert found.buckets_ms == {"p50": (0, 10), "p90": (10, 100), "p99": (1000, None)}


def test_several_loads_are_added_up() -> None:
    loads = [
        (reading(0, 0, 0, 0, num_preemptions_total=1.0),
         reading(10, 10, 10, 10, total=0.1, num_preemptions_total=3.0)),
        (reading(10, 10, 10, 10, num_preemptions_total=3.0),
         reading(10, 100, 100, 100, total=9.0, num_preemptions_total=4.0)),
    ]  # fmt: skip
    assert server_latencies(loads)["service_ttft"].buckets_ms["p50"] == (10, 100)
    assert server_latencies(loads)["service_ttft"].num == 100
    assert server_counts(loads) == {"num_preemptions": 3.0}
    assert server_latencies([]) == {} and server_counts([]) == {}
