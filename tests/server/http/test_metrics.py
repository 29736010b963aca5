"""The `/metrics` page: names, arithmetic, and that what was observed is read back."""

from __future__ import annotations

import math

import pytest

from dstune.measure.server_metrics import read_metrics
from dstune.server.http.metrics import SECONDS, Metrics

STEP = {
    "start_ns": 1, "duration_ns": 20_000_000, "num_prefill_tokens": 30, "num_decode_tokens": 3,
    "num_running": 4, "num_waiting": 7, "num_free_blocks": 75, "num_preempted": 1,
    "num_cached_tokens": 10,
}  # fmt: skip


def finish(metrics: Metrics, reason: str = "stop", output_tokens: int = 3) -> None:
    metrics.observe_finished(
        reason, queue_s=0.01, prefill_s=0.02, decode_s=0.3, e2e_s=0.33, prompt_tokens=40,
        output_tokens=output_tokens,
    )  # fmt: skip


def test_a_page_has_vllms_names_and_what_was_observed() -> None:
    metrics = Metrics("tiny")
    metrics.set_capacity(100)
    metrics.observe_step(STEP)
    metrics.observe_first_token(0.03)
    metrics.observe_token_gap(0.15)
    metrics.observe_token_gap(0.15)
    finish(metrics)
    text = metrics.text().decode()
    assert 'dstune:request_success_total{finished_reason="stop",model_name="tiny"} 1.0' in text
    read = read_metrics(text)
    assert read.values == {
        "num_requests_running": 4,
        "num_requests_waiting": 7,
        "kv_cache_usage_perc": pytest.approx(0.25),
        "prefix_cache_queries_total": 40,
        "prefix_cache_hits_total": 10,
        "num_preemptions_total": 1,
        "prompt_tokens_total": 40,
        "generation_tokens_total": 3,
        "prefill_step_seconds_total": pytest.approx(0.02),
        "request_success_total": 1,
    }
    sums = {name: (one.count, one.sum) for name, one in read.histograms.items()}
    assert sums == {
        "time_to_first_token_seconds": (1, 0.03),
        "inter_token_latency_seconds": (2, 0.3),
        "request_queue_time_seconds": (1, 0.01),
        "request_prefill_time_seconds": (1, 0.02),
        "request_decode_time_seconds": (1, 0.3),
        "e2e_request_latency_seconds": (1, 0.33),
        "iteration_tokens_total": (1, 33),
        "batch_size": (1, 4),
        "step_duration_seconds": (1, 0.02),
        "step_kv_cache_usage_perc": (1, 0.25),
    }


def test_what_monitoring_wants_of_the_engine_is_there_under_vllms_names_where_it_has_one() -> None:
    """Two steps of 100 blocks: 30 + 3 tokens for 4 sequences, then 5 decodes for 5."""
    metrics = Metrics("tiny")
    metrics.set_capacity(100)
    metrics.observe_step(STEP)
    decode = {"num_prefill_tokens": 0, "num_decode_tokens": 5, "num_running": 5}
    metrics.observe_step(
        {**STEP, **decode, "duration_ns": 10_000_000, "num_free_blocks": 40, "num_cached_tokens": 0}
    )
    finish(metrics)  # waited 10 ms
    read = read_metrics(metrics.text().decode())
    sums = {name: (one.count, pytest.approx(one.sum)) for name, one in read.histograms.items()}
    # effective batch sizes, tokens per step, queue waits, step durations
    assert sums["batch_size"] == (2, 9) and sums["iteration_tokens_total"] == (2, 38)
    assert sums["request_queue_time_seconds"] == (1, 0.01)
    assert sums["step_duration_seconds"] == (2, 0.03)
    assert read.values["prefill_step_seconds_total"] == pytest.approx(0.02)
    # KV use now and over steps, preemptions, prefix hits
    assert read.values["kv_cache_usage_perc"] == pytest.approx(0.6)
    usage = read.histograms["step_kv_cache_usage_perc"]
    at_most = dict(zip(usage.bounds, usage.counts, strict=True))
    assert (at_most[0.2], at_most[0.25], at_most[0.55], at_most[0.65]) == (0, 1, 1, 2)
    assert read.values["num_preemptions_total"] == 2
    assert read.values["prefix_cache_hits_total"] == 10
    assert read.values["prefix_cache_queries_total"] == 40


def test_without_a_known_capacity_no_use_of_it_is_told() -> None:
    metrics = Metrics()
    metrics.observe_step(STEP)
    read = read_metrics(metrics.text().decode())
    assert read.histograms["step_kv_cache_usage_perc"].count == 0


def test_a_value_lies_in_a_bucket_not_much_wider_than_a_fifth() -> None:
    for value in (0.0011, 0.0101, 0.05, 1.0, 59.0):
        metrics = Metrics()
        metrics.observe_first_token(value)
        one = read_metrics(metrics.text().decode()).histograms["time_to_first_token_seconds"]
        index = one.counts.index(1)
        assert one.bounds[index - 1] < value <= one.bounds[index]
        assert one.bounds[index] / one.bounds[index - 1] < 1.23
    assert SECONDS[-1] >= 600 and list(SECONDS) == sorted(set(SECONDS))


def test_what_is_beyond_the_last_bound_is_still_counted() -> None:
    metrics = Metrics()
    metrics.observe_first_token(1e6)
    one = read_metrics(metrics.text().decode()).histograms["time_to_first_token_seconds"]
    assert one.count == 1 and one.counts[-2] == 0 and one.bounds[-1] == math.inf


def test_stages_that_a_request_did_not_reach_are_not_counted() -> None:
    metrics = Metrics()
    metrics.observe_finished(
        "abort", queue_s=None, prefill_s=None, decode_s=None, e2e_s=2.0, prompt_tokens=5,
        output_tokens=0,
    )  # fmt: skip
    finish(metrics, "length", output_tokens=1)
    read = read_metrics(metrics.text().decode())
    assert read.histograms["request_queue_time_seconds"].count == 1
    assert read.histograms["request_decode_time_seconds"].count == 0
    assert read.histograms["e2e_request_latency_seconds"].count == 2


def test_an_idle_server_shows_nothing_running() -> None:
    metrics = Metrics()
    metrics.set_capacity(100)
    metrics.observe_step(STEP)
    metrics.observe_idle(100)
    values = read_metrics(metrics.text().decode()).values
    assert values["num_requests_running"] == values["num_requests_waiting"] == 0
    assert values["kv_cache_usage_perc"] == 0


def test_an_unknown_reason_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(KeyError):
        finish(Metrics(), "because")
