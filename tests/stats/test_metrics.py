"""Each metric by a hand-worked example."""

from __future__ import annotations

import pytest
from samples import sample

from dstune.measure.record import Claim
from dstune.measure.sample import Status
from dstune.profile.model import LATENCY_METRICS
from dstune.stats.figures import check_slo, compare, figures_of
from dstune.stats.metrics import (
    LATENCIES,
    Limit,
    Loop,
    counted,
    e2e_s,
    goodput_per_s,
    inter_chunk_latencies_s,
    is_good,
    itls_s,
    latencies_s,
    load_seconds,
    output_tokens_per_s,
    requests_per_s,
    service_ttft_s,
    success_rate,
    tpot_s,
    ttft_s,
    window,
)
from dstune.stats.vllm_bench import vllm_bench

TTFT_200 = Limit("ttft_p99_ms", "ttft", 99, 0.2)
TPOT_50 = Limit("tpot_p99_ms", "tpot", 99, 0.05)


def test_profile_and_stats_know_the_same_latencies() -> None:
    assert tuple(LATENCIES) == LATENCY_METRICS


def test_ttft_counts_from_the_intended_time_and_service_ttft_from_the_actual_one() -> None:
    one = sample(intended_ms=100, sent_ms=2100, tokens_ms=[2150, 2160])
    assert ttft_s(one) == pytest.approx(2.05)
    assert service_ttft_s(one) == pytest.approx(0.05)
    assert e2e_s(one) == pytest.approx(2.06)


def test_tpot_of_single_tokens_divides_by_one_less_than_their_number() -> None:
    assert tpot_s(sample(tokens_ms=[50, 60, 70, 80])) == pytest.approx(0.010)


def test_tpot_divides_by_the_tokens_after_the_first_chunk() -> None:
    # 4 tokens at 50 ms, then 6 singly every 10 ms: 10 ms per token, not 60 / 9
    one = sample(tokens_ms=[50, 60, 70, 80, 90, 100, 110], chunks=[4, 1, 1, 1, 1, 1, 1])
    assert tpot_s(one) == pytest.approx(0.010)


def test_tpot_is_none_when_nothing_follows_the_first_chunk() -> None:
    assert tpot_s(sample(tokens_ms=[50])) is None
    assert tpot_s(sample(tokens_ms=[50], chunks=[8])) is None
    assert tpot_s(sample(status=Status.FAILED)) is None


def test_itl_is_the_gaps_between_tokens_and_not_claimed_for_larger_chunks() -> None:
    assert itls_s(sample(tokens_ms=[50, 60, 75])) == pytest.approx([0.010, 0.015])
    pairs = sample(tokens_ms=[50, 60, 75], chunks=[1, 2, 2])
    assert itls_s(pairs) == []
    assert inter_chunk_latencies_s(pairs) == pytest.approx([0.010, 0.015])


def test_latencies_are_those_of_requests_that_ended_ok() -> None:
    cut_off = sample(tokens_ms=[500], status=Status.TIMEOUT)
    assert latencies_s([sample(tokens_ms=[50]), cut_off], "ttft") == pytest.approx([0.05])


def test_good_requests_meet_every_limit() -> None:
    limits = [TTFT_200, TPOT_50]
    assert is_good(sample(tokens_ms=[200, 250]), limits)
    assert not is_good(sample(tokens_ms=[201, 210]), limits)
    assert not is_good(sample(tokens_ms=[100, 160]), limits)
    assert is_good(sample(tokens_ms=[100]), limits)  # nothing after the first token: met
    assert not is_good(sample(tokens_ms=[100, 110], status=Status.INCOMPLETE), limits)


def test_a_median_limit_does_not_bind_each_request_when_a_higher_percentile_is_promised() -> None:
    limits = [TTFT_200, Limit("ttft_p50_ms", "ttft", 50, 0.05)]
    assert is_good(sample(tokens_ms=[150]), limits)


def test_lost_requests_stay_in_the_denominator_and_abandoned_ones_do_not() -> None:
    samples = [
        sample(tokens_ms=[50]),
        sample(status=Status.REJECTED),
        sample(status=Status.FAILED),
        sample(status=Status.TIMEOUT),
        sample(status=Status.INCOMPLETE),
        sample(status=Status.UNSENT),
        sample(status=Status.CANCELLED),
        sample(status=Status.FAILED, kind="empty_prompt"),
    ]
    assert len(counted(samples)) == 4
    assert success_rate(counted(samples)) == 0.25


def test_goodput_refers_to_the_schedule_and_requests_per_s_to_the_whole() -> None:
    # 5 requests every 250 ms are 4 per second; the second one is late, the third one lost
    samples = [sample(intended_ms=250 * at, tokens_ms=[250 * at + 100]) for at in range(5)]
    samples[1] = sample(intended_ms=250, tokens_ms=[700])
    samples[2] = sample(intended_ms=500, status=Status.FAILED)
    assert load_seconds(samples, Loop.OPEN) == pytest.approx(1.25)
    assert requests_per_s(samples) == pytest.approx(4 / 1.1)  # the last answer is at 1.1 s
    assert goodput_per_s(samples, Loop.OPEN, [TTFT_200]) == pytest.approx(3 / 1.25)


def test_batch_rates_refer_to_the_whole_with_its_tail() -> None:
    samples = [sample(tokens_ms=[100, 200]), sample(tokens_ms=[100, 2000])]
    assert window(samples, Loop.BATCH).seconds == pytest.approx(2.0)  # type: ignore[union-attr]
    assert output_tokens_per_s(samples, Loop.BATCH) == pytest.approx(4 / 2.0)
    assert requests_per_s(samples) == pytest.approx(1.0)


def test_ramp_and_drain_are_outside_the_window() -> None:
    # one request each second, each with tokens after 0.2, 0.4, ... 1.0 s: 5 tokens/s throughout
    samples = [
        sample(1000 * at, tokens_ms=[1000 * at + 200 * step for step in range(1, 6)])
        for at in range(10)
    ]
    inside = window(samples, Loop.OPEN)
    assert inside is not None and inside.kind == "steady"
    assert (inside.start_ns, inside.end_ns) == (1_000_000_000, 9_000_000_000)
    assert output_tokens_per_s(samples, Loop.OPEN) == pytest.approx(5.0)
    assert output_tokens_per_s(samples, Loop.CLOSED) == pytest.approx(5.0)


def test_a_load_that_was_hardly_ever_steady_counts_as_a_whole() -> None:
    samples = [sample(at, tokens_ms=[1000 + at]) for at in range(3)]
    inside = window(samples, Loop.OPEN)
    assert inside is not None and inside.kind == "whole"
    assert inside.seconds == pytest.approx(1.002)


def test_nothing_answered_has_no_figures_and_no_crash() -> None:
    lost = [sample(status=Status.FAILED) for _ in range(3)]
    figures = figures_of([lost], Loop.BATCH, [TTFT_200])
    assert figures["ttft_p99_ms"].value is None
    assert figures["success_rate"].value == 0
    assert figures["output_tokens_per_s"].value == 0
    checks = check_slo([lost], [TTFT_200], 0.99)
    assert [check.is_met for check in checks] == [False, False]
    assert figures_of([[]], Loop.OPEN, [])["goodput_per_s"].value == 0


def test_percentiles_pool_repetitions_and_rates_average_them() -> None:
    first = [sample(tokens_ms=[100, 1000])]
    second = [sample(tokens_ms=[300, 2000])]
    figures = figures_of([first, second], Loop.BATCH, [])
    assert figures["ttft_p50_ms"].value == pytest.approx(200)
    assert figures["output_tokens_per_s"].value == pytest.approx((2 / 1 + 2 / 2) / 2)
    assert figures["output_tokens_per_s"].low is not None


def test_slo_checks_say_both_what_was_measured_and_what_is_claimed() -> None:
    few = [sample(tokens_ms=[100, 110]) for _ in range(100)]
    check = check_slo([few], [TTFT_200], 0.99)[0]
    assert (check.is_met, check.claim, check.num_needed) == (True, Claim.INCONCLUSIVE, 299)
    assert check.measured == pytest.approx(100)
    enough = check_slo([few, few, few], [TTFT_200], 0.99)
    assert {one.claim for one in enough} == {Claim.PASS}
    slow = [sample(tokens_ms=[300, 310]) for _ in range(20)]
    late = check_slo([few + slow], [TTFT_200], 0.99)[0]
    assert (late.is_met, late.claim) == (False, Claim.FAIL)


def test_a_promise_about_gaps_is_judged_and_never_claimed() -> None:
    limit = Limit("itl_p99_ms", "itl", 99, 0.02)
    many = [sample(tokens_ms=[100, 110, 120]) for _ in range(1000)]
    check = check_slo([many], [limit], 0.99)[0]
    assert (check.is_met, check.claim) == (True, Claim.INCONCLUSIVE)


def test_comparison_is_by_repetition() -> None:
    def figures(end_ms: float) -> dict[str, object]:
        return figures_of([[sample(tokens_ms=[100, end_ms])]], Loop.BATCH, [])  # type: ignore[return-value]

    new = [figures(500), figures(1000)]
    old = [figures(1000), figures(2000)]
    ratio = compare(new, old)["output_tokens_per_s"]  # type: ignore[arg-type]
    assert ratio.value == pytest.approx(2.0)
    assert ratio.low == pytest.approx(2.0) and ratio.high == pytest.approx(2.0)


def test_vllm_keys_and_definitions() -> None:
    one = sample(intended_ms=0, sent_ms=100, tokens_ms=[150, 160, 170, 180])
    lost = sample(status=Status.FAILED)
    bench = vllm_bench([one, lost], Loop.BATCH, [TTFT_200], None)
    assert bench["request_rate"] == "inf"
    assert (bench["completed"], bench["failed"]) == (1, 1)
    assert bench["mean_ttft_ms"] == pytest.approx(50)
    assert bench["mean_tpot_ms"] == pytest.approx(10)
    assert bench["median_itl_ms"] == pytest.approx(10)
    assert bench["p99_e2el_ms"] == pytest.approx(80)
    assert bench["duration"] == pytest.approx(0.18)
    assert bench["output_throughput"] == pytest.approx(4 / 0.18)
    assert (bench["input_lens"], bench["output_lens"]) == ([10], [4])
    assert bench["errors"] == ["internal"]
    keys = {
        "duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
        "request_throughput", "request_goodput", "output_throughput", "total_token_throughput",
        "input_lens", "output_lens", "ttfts", "itls", "start_times", "errors",
    } | {f"{part}_{name}_ms" for part in ("mean", "median", "std", "p99")
         for name in ("ttft", "tpot", "itl", "e2el")}  # fmt: skip
    assert keys <= set(bench)
