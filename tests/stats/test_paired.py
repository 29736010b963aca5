"""The paired gate: hand-worked verdicts, the boundaries of each look, and its metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from dstune.errors import NotComparable, UsageError
from dstune.measure.comparison import MetricChange, RunFigures, Thresholds
from dstune.measure.record import Claim
from dstune.stats.paired import (
    GATED,
    Gated,
    choose_metrics,
    false_alarm_bound,
    gated_for,
    judge,
    overall,
    pair_differences,
)

TTFT = Gated("ttft_p50_ms")
THROUGHPUT = Gated("output_tokens_per_s", is_higher_better=True)
USUAL = Thresholds()

Side = list[RunFigures]


def run(name: str = "run", num_ok: int = 2000, **figures: float) -> RunFigures:
    return RunFigures(name=name, started_utc="", num_ok=num_ok, num_failed=0, figures=figures)


def sides(*differences: Sequence[float], metrics: Sequence[Gated] = (TTFT,)) -> tuple[Side, Side]:
    """Runs of a baseline of 100 throughout, and of a candidate with these D, one list a metric."""
    before, after = [], []
    for at in range(len(differences[0])):
        signed = [-1 if metric.is_higher_better else 1 for metric in metrics]
        values = [100 * math.exp(s * d[at]) for s, d in zip(signed, differences, strict=True)]
        before.append(run(f"a{at}", **dict.fromkeys([one.name for one in metrics], 100.0)))
        after.append(run(f"b{at}", **dict(zip([one.name for one in metrics], values, strict=True))))
    return before, after


def spread(mean: float, step: float, num: int = 5) -> list[float]:
    """Evenly spaced about the mean; of five, the sd is step * sqrt(2.5), of the mean / sqrt(5)."""
    return [mean + step * (at - (num - 1) / 2) for at in range(num)]


def judge_one(
    differences: Sequence[float], thresholds: Thresholds = USUAL, metric: Gated = TTFT
) -> MetricChange:
    (change,) = judge(*sides(differences, metrics=[metric]), [metric], thresholds)
    return change


# Hand-worked.


@pytest.mark.parametrize("metric", [TTFT, THROUGHPUT])
def test_every_number_of_five_pairs(metric: Gated) -> None:
    # D = .06 .08 .10 .12 .14: mean .1, sd .02 sqrt(2.5) = .0316228, of the mean .0141421.
    # t of 4 degrees at .98 is 2.99853, at .97 2.60076:
    # low = exp(.1 - .0424055) - 1, high = exp(.1 + .0367803) - 1
    change = judge_one(spread(0.10, 0.02), metric=metric)
    assert change.sd == pytest.approx(0.0316228, rel=1e-5)
    assert change.change.value == pytest.approx(0.1051709, rel=1e-5)
    assert change.change.low == pytest.approx(math.exp(0.0575945) - 1, rel=1e-4)
    assert change.change.high == pytest.approx(math.exp(0.1367803) - 1, rel=1e-4)
    assert change.baseline == pytest.approx(100)
    slower = 110.51709 if metric is TTFT else 90.48374
    assert change.candidate == pytest.approx(slower, rel=1e-6)
    assert (change.claim, change.pairs_needed) == (Claim.FAIL, None)


def test_an_underpowered_gate_is_inconclusive_and_says_how_many_pairs_decide() -> None:
    # mean .05 is 1.77 errors, short of 2.999; its bound .05 + 2.60 * .0283 exceeds ln 1.1 = .0953.
    # The larger effect is the slowdown's .05 (to the margin .0453 are left):
    # 6.2 (.0632456 / .05)^2 + 1.5 = 6.2 * 1.6 + 1.5 = 11.42
    change = judge_one(spread(0.05, 0.04))
    assert (change.claim, change.pairs_needed) == (Claim.INCONCLUSIVE, 12)
    # nothing is slower, but the spread hides it: 6.2 (.158114 / .0953102)^2 + 1.5 = 18.56
    change = judge_one(spread(0.0, 0.10))
    assert (change.claim, change.pairs_needed) == (Claim.INCONCLUSIVE, 19)


def test_more_pairs_are_needed_than_there_are() -> None:
    # 2.99 errors from nothing, where 2.9985 fail: the formula says 6.2 * 2.5 / (.5 * 2.99^2) + 1.5
    # = 4.97, and 5 there are
    change = judge_one(spread(0.09, 0.09 / (math.sqrt(0.5) * 2.99)))
    assert (change.claim, change.pairs_needed) == (Claim.INCONCLUSIVE, 6)


@pytest.mark.parametrize(
    ("num_metrics", "critical"),  # t of 4 degrees at .02, .02 / 2, .02 / 4
    [(1, 2.99853), (2, 3.74695), (4, 4.60409)],
)
def test_bonferroni_moves_the_boundary_by_the_number_of_metrics(
    num_metrics: int, critical: float
) -> None:
    metrics = [Gated(f"m{at}_ms") for at in range(num_metrics)]
    for errors, said in ((critical - 1e-3, Claim.INCONCLUSIVE), (critical + 1e-3, Claim.FAIL)):
        slow = spread(0.2, 0.2 / (math.sqrt(0.5) * errors))
        same = [spread(0.0, 0.001)] * (num_metrics - 1)
        changes = judge(*sides(slow, *same, metrics=metrics), metrics, USUAL)
        assert changes[0].claim is said
        assert all(change.claim is Claim.PASS for change in changes[1:])
        assert overall(changes) is said
        assert len({change.change.high for change in changes[1:]}) <= 1


def test_the_same_pairs_fail_as_one_metric_and_not_as_one_of_four() -> None:
    slow = spread(0.2, 0.2 / (math.sqrt(0.5) * 4))  # 4 errors from nothing
    assert judge_one(slow).claim is Claim.FAIL
    four = judge(*sides(slow, slow, slow, slow, metrics=GATED), GATED, USUAL)
    assert {change.claim for change in four} == {Claim.INCONCLUSIVE}


def test_the_pass_bound_is_not_divided_by_the_number_of_metrics() -> None:
    differences = spread(0.0, 0.05)
    one = judge_one(differences)
    four = judge(*sides(*[differences] * 4, metrics=GATED), GATED, USUAL)
    # 2.60076 * .05 sqrt(.5) = .0919507, within ln 1.1 = .0953102
    assert one.change.high == pytest.approx(math.expm1(0.0919507), rel=1e-4)
    assert [change.change.high for change in four] == pytest.approx([one.change.high] * 4)
    assert overall(four) is Claim.PASS


def test_a_slowdown_below_the_smallest_effect_is_no_failure_however_sure() -> None:
    change = judge_one(spread(0.025, 0.001))
    assert change.change.low is not None and change.change.low > 0.02
    assert change.claim is Claim.PASS
    assert judge_one(spread(0.025, 0.001), Thresholds(min_effect=0.02)).claim is Claim.FAIL
    assert judge_one(spread(0.025, 0.001), Thresholds(margin=0.02)).claim is Claim.INCONCLUSIVE


def test_no_number_of_pairs_decides_between_the_margin_and_the_smallest_effect() -> None:
    thresholds = Thresholds(min_effect=0.10, margin=0.02)
    change = judge_one(spread(0.05, 0.001), thresholds)
    assert (change.claim, change.pairs_needed) == (Claim.INCONCLUSIVE, None)


def test_a_faster_candidate_passes() -> None:
    change = judge_one(spread(-0.2, 0.02))
    assert change.claim is Claim.PASS
    assert change.change.value == pytest.approx(math.expm1(-0.2))


@pytest.mark.parametrize("metric", [TTFT, THROUGHPUT])
@pytest.mark.parametrize(
    ("ratio", "said"), [(1.0, Claim.PASS), (1.02, Claim.PASS), (1.3, Claim.FAIL)]
)
def test_pairs_without_any_spread_are_exact(metric: Gated, ratio: float, said: Claim) -> None:
    after = 3.7 / ratio if metric.is_higher_better else 3.7 * ratio
    before = [run(**{metric.name: 3.7})] * 12  # whose mean rounds
    (change,) = judge(before, [run(**{metric.name: after})] * 12, [metric], USUAL)
    found = change.change
    assert [found.value, found.low, found.high] == pytest.approx([ratio - 1] * 3, abs=1e-15)
    assert (change.sd, change.claim) == (0.0, said)


# The looks.


@pytest.mark.parametrize(
    ("num", "fails_at", "passes_at"),  # t of num - 1 degrees at 1 - alpha and at 1 - beta
    [(5, 2.99853, 2.60076), (8, 2.51675, 2.24088), (12, 2.09614, 1.79588)],
)
def test_each_look_has_its_own_levels(num: int, fails_at: float, passes_at: float) -> None:
    error = math.sqrt((num + 1) / 12)  # of the mean of num numbers one apart
    for slack, said in ((-1e-3, Claim.INCONCLUSIVE), (1e-3, Claim.FAIL)):
        step = 0.3 / (error * (fails_at + slack))
        assert judge_one(spread(0.3, step, num)).claim is said
    for slack, said in ((1e-3, Claim.INCONCLUSIVE), (-1e-3, Claim.PASS)):
        step = math.log(1.1) / (error * passes_at) * (1 + slack)
        assert judge_one(spread(0.0, step, num)).claim is said


@pytest.mark.parametrize("num", [0, 1, 2, 4, 6, 7, 9, 11, 13])
def test_a_number_of_pairs_that_is_no_look_is_refused(num: int) -> None:
    side = [run(ttft_p50_ms=100.0)] * num
    with pytest.raises(ValueError, match="no look"):
        judge(side, side, [TTFT], USUAL)


def test_a_run_without_its_partner_is_refused() -> None:
    with pytest.raises(ValueError, match="5 and 8 runs"):
        judge([run(ttft_p50_ms=1.0)] * 5, [run(ttft_p50_ms=1.0)] * 8, [TTFT], USUAL)


def test_the_order_of_pairs_does_not_matter() -> None:
    rng = np.random.default_rng(5)
    before, after = sides(*rng.normal(0.03, 0.1, (4, 8)).tolist(), metrics=GATED)
    there = judge(before, after, GATED, USUAL)
    order = rng.permutation(8)
    back = judge([before[at] for at in order], [after[at] for at in order], GATED, USUAL)
    for one, other in zip(there, back, strict=True):
        assert one.claim is other.claim
        assert one.change.low == pytest.approx(other.change.low, rel=1e-9)
        assert one.change.high == pytest.approx(other.change.high, rel=1e-9)


def test_what_pairs_share_cancels() -> None:
    drift = [1.0, 3.0, 0.2, 8.0, 40.0]  # of the machine, from pair to pair
    before, after = sides(spread(0.10, 0.02))
    moved = [
        [
            run(ttft_p50_ms=one.figures["ttft_p50_ms"] * by)
            for one, by in zip(side, drift, strict=True)
        ]
        for side in (before, after)
    ]
    (plain,), (drifted,) = judge(before, after, [TTFT], USUAL), judge(*moved, [TTFT], USUAL)
    assert drifted.change.low == pytest.approx(plain.change.low)
    assert drifted.claim is plain.claim is Claim.FAIL


# Metrics.


def test_any_failure_fails_and_a_pass_needs_every_metric() -> None:
    one = judge_one(spread(0.0, 0.01))
    said = {claim: one.model_copy(update={"claim": claim}) for claim in Claim}
    assert overall([said[Claim.PASS]] * 2) is Claim.PASS
    assert overall([said[Claim.PASS], said[Claim.INCONCLUSIVE]]) is Claim.INCONCLUSIVE
    assert overall([said[Claim.INCONCLUSIVE], said[Claim.FAIL]]) is Claim.FAIL
    with pytest.raises(ValueError, match="no metric"):
        overall([])


def test_p95_stands_in_for_p99_below_a_thousand_requests_in_any_run() -> None:
    assert gated_for(GATED, [run(num_ok=1000), run(num_ok=1000)]) == GATED
    found = gated_for(GATED, [run(num_ok=5000), run(num_ok=999)])
    note = "p95 stands in for p99: 999 completed requests per run, 1,000 needed"
    assert found == (
        GATED[0],
        GATED[1],
        Gated("ttft_p95_ms", note=note),
        Gated("tpot_p95_ms", note=note),
    )
    both = gated_for(choose_metrics(["ttft_p95_ms", "ttft_p99_ms"]), [run(num_ok=10)])
    assert [gated.name for gated in both] == ["ttft_p95_ms"]  # judged, and divided by, once


def test_the_note_reaches_the_verdict() -> None:
    (change,) = judge(*sides(spread(0, 0.01)), [Gated("ttft_p50_ms", note="so it is")], USUAL)
    assert change.note == "so it is"


def test_chosen_metrics_know_which_way_is_worse() -> None:
    assert choose_metrics([]) == GATED
    assert choose_metrics(["requests_per_s", "e2e_p50_ms", "e2e_p50_ms"]) == (
        Gated("requests_per_s", is_higher_better=True),
        Gated("e2e_p50_ms"),
    )
    with pytest.raises(UsageError, match=r"'success_rate' cannot be gated.*output_tokens_per_s"):
        choose_metrics(["success_rate"])


@pytest.mark.parametrize(
    ("figures", "said"),
    [({}, "no value"), ({"ttft_p50_ms": 0.0}, "the value 0"), ({"ttft_p50_ms": math.nan}, "nan")],
)
def test_a_metric_that_a_run_lacks_is_not_comparable(figures: dict[str, float], said: str) -> None:
    before, after = sides(spread(0, 0.01))
    after[3] = run("t0042", **figures)
    with pytest.raises(NotComparable, match=f"run t0042 has .*{said}.* ttft_p50_ms.*--metric"):
        judge(before, after, [TTFT], USUAL)


def test_differences_are_signed_so_that_above_zero_is_worse() -> None:
    before = [run(ttft_p50_ms=100.0, output_tokens_per_s=100.0)] * 2
    after = [
        run(ttft_p50_ms=110.0, output_tokens_per_s=90.0),
        run(ttft_p50_ms=90.0, output_tokens_per_s=110.0),
    ]
    found = pair_differences(before, after, [TTFT, THROUGHPUT])
    assert found["ttft_p50_ms"] == pytest.approx((math.log(1.1), math.log(0.9)))
    assert found["output_tokens_per_s"] == pytest.approx((-math.log(0.9), -math.log(1.1)))


def test_twenty_nine_clean_comparisons_show_ten_percent() -> None:
    # without an alarm the bound is 1 - .05^(1/n)
    assert false_alarm_bound(0, 29) == pytest.approx(1 - 0.05 ** (1 / 29))
    assert false_alarm_bound(0, 29) <= 0.10 < false_alarm_bound(0, 28)
    assert false_alarm_bound(0, 1) == pytest.approx(0.95)
    # one alarm in two: P(at most 1 of 2) = 1 - p^2 = .05
    assert false_alarm_bound(1, 2) == pytest.approx(0.95**0.5)
    assert false_alarm_bound(0, 0) == false_alarm_bound(3, 3) == 1.0
