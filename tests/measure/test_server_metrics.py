"""A server's `/metrics` page, read: prefixes, labels, and pages that are none."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client import Histogram as PrometheusHistogram

from dstune.measure.server_metrics import Histogram, read_metrics

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 100.0
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7e+09
# HELP vllm:time_to_first_token_seconds Histogram of time to first token in seconds.
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_sum{engine="0"} 0.5
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.01"} 2.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 5.0
vllm:time_to_first_token_seconds_count{engine="0"} 5.0
vllm:time_to_first_token_seconds_sum{engine="1"} 0.25
vllm:time_to_first_token_seconds_bucket{engine="1",le="0.001"} 0.0
vllm:time_to_first_token_seconds_bucket{engine="1",le="0.01"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="1",le="+Inf"} 1.0
vllm:time_to_first_token_seconds_count{engine="1"} 1.0
process_resident_memory_bytes 1.5e+08
"""


def test_a_page_of_vllm() -> None:
    read = read_metrics(VLLM)
    assert read.values["num_requests_running"] == 7
    assert read.values["prompt_tokens_total"] == 100
    assert read.values["process_resident_memory_bytes"] == 1.5e8
    first = read.histograms["time_to_first_token_seconds"]
    assert first == Histogram((0.001, 0.01, math.inf), (1, 3, 6), 0.75)
    assert first.count == 6


def test_what_prometheus_writes_is_read_back() -> None:
    registry = CollectorRegistry()
    Gauge("dstune:kv_cache_usage_perc", "x", registry=registry).set(0.25)
    Counter("dstune:requests", "x", ["reason"], registry=registry).labels("stop").inc(2)
    seconds = PrometheusHistogram("dstune:itl_seconds", "x", registry=registry, buckets=(0.1, 1))
    for value in (0.05, 0.5, 5):
        seconds.observe(value)
    before = read_metrics(generate_latest(registry).decode())
    seconds.observe(0.5)
    after = read_metrics(generate_latest(registry).decode())
    assert before.values["kv_cache_usage_perc"] == 0.25
    assert before.values["requests_total"] == 2
    since = after.histograms["itl_seconds"].minus(before.histograms["itl_seconds"])
    assert since.counts == (0, 1, 1) and since.sum == pytest.approx(0.5)


def test_series_with_other_bounds_are_added_where_both_have_a_bound() -> None:
    text = """\
# TYPE a histogram
a_bucket{e="0",le="1"} 1
a_bucket{e="0",le="2"} 2
a_bucket{e="0",le="+Inf"} 3
a_bucket{e="1",le="2"} 10
a_bucket{e="1",le="+Inf"} 20
"""
    assert read_metrics(text).histograms["a"] == Histogram((2, math.inf), (12, 23), 0)


def test_an_empty_page_holds_nothing() -> None:
    read = read_metrics("")
    assert not read.values and not read.histograms


@pytest.mark.parametrize(
    "text",
    ["<html><body>404</body></html>", '{"error": {"message": "no"}}', "hello there", "a{b=c} 1",
     '# TYPE a histogram\na_bucket{le="x"} 1\n', '# TYPE a histogram\na_bucket{le="1"} 1\n'],
)  # fmt: skip
def test_what_is_no_page_of_metrics_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        read_metrics(text)


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from('ab_:#{}"=,\\ \n01.eE+-NTYPEhistogram'), max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        read_metrics(text)
