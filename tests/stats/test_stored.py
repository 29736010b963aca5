"""The advisory verdict against stored sessions: hand-worked, its coverage and its power."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pytest

from dstune.errors import NotComparable, UsageError
from dstune.measure.comparison import MetricChange, RunFigures, Session, Subject, Thresholds
from dstune.measure.record import Claim
from dstune.stats.paired import Gated, overall
from dstune.stats.stored import judge_stored

TTFT = Gated("ttft_p50_ms")
THROUGHPUT = Gated("output_tokens_per_s", is_higher_better=True)
USUAL = Thresholds()


def session(name: str, *runs: dict[str, float]) -> Session:
    return Session(
        name=name,
        source=name,
        started_utc="",
        subject=Subject(tool="dstune", model="tiny"),
        runs=tuple(
            RunFigures(name=f"{name}/{at}", started_utc="", num_ok=2000, num_failed=0, figures=one)
            for at, one in enumerate(runs)
        ),
    )


def one_run(log_change: float, *metrics: Gated) -> Session:
    """A session of 100, worse by this much in ln."""
    signed = {one.name: -1 if one.is_higher_better else 1 for one in metrics}
    return session("s", {name: 100 * math.exp(s * log_change) for name, s in signed.items()})


def judge_one(
    earlier: Sequence[float], now: float, metric: Gated = TTFT, thresholds: Thresholds = USUAL
) -> MetricChange:
    sessions = [one_run(one, metric) for one in earlier]
    (change,) = judge_stored(sessions, one_run(now, metric), [metric], thresholds)
    return change


@pytest.mark.parametrize("metric", [TTFT, THROUGHPUT])
def test_every_number_of_five_sessions(metric: Gated) -> None:
    # ln: -.02 -.01 0 .01 .02: mean 0, sd .01 sqrt(2.5) = .0158114, times sqrt(1 + 1/5) .0173205;
    # t of 4 degrees at .95 is 2.13185: one more session strays by up to .0369247
    change = judge_one([-0.02, -0.01, 0, 0.01, 0.02], 0.05, metric)
    assert change.baseline == pytest.approx(100)
    assert change.candidate == pytest.approx(105.12711 if metric is TTFT else 95.12294)
    assert change.sd == pytest.approx(0.0158114, rel=1e-5)
    assert change.change.value == pytest.approx(math.exp(0.05) - 1)
    assert change.change.low == pytest.approx(math.exp(0.05 - 0.0369247) - 1, rel=1e-4)
    assert change.change.high == pytest.approx(math.exp(0.05 + 0.0369247) - 1, rel=1e-5)
    assert (change.claim, change.pairs_needed) == (Claim.FAIL, None)


@pytest.mark.parametrize(("num_metrics", "critical"), [(1, 2.13185), (4, 3.49541)])
def test_bonferroni_moves_the_boundary_by_the_number_of_metrics(
    num_metrics: int, critical: float
) -> None:
    """By t of 4 degrees at .05 and at .05 / 4, for sessions as above."""
    metrics = [Gated(f"m{at}_ms") for at in range(num_metrics)]
    earlier = [one_run(0.1 * at, *metrics) for at in (-2, -1, 0, 1, 2)]
    for slack, said in ((-1e-3, Claim.INCONCLUSIVE), (1e-3, Claim.FAIL)):
        candidate = one_run(0.173205 * (critical + slack), *metrics)
        changes = judge_stored(earlier, candidate, metrics, USUAL)
        assert {change.claim for change in changes} == {said}
        assert overall(changes) is said


def test_a_pass_excludes_a_slowdown_of_the_margin() -> None:
    steady = [-0.02, -0.01, 0, 0.01, 0.02]
    assert judge_one(steady, 0.0).claim is Claim.PASS  # up to .0369, within ln 1.1 = .0953
    assert judge_one(steady, 0.02).claim is Claim.PASS
    assert judge_one(steady, 0.02, thresholds=Thresholds(margin=0.05)).claim is Claim.INCONCLUSIVE


def test_a_slowdown_below_the_smallest_effect_is_no_failure() -> None:
    change = judge_one([-0.001, 0, 0.001], 0.025)
    assert change.change.low is not None and change.change.low > 0
    assert change.claim is Claim.PASS


def test_one_value_a_session_however_many_runs() -> None:
    # sessions of geometric mean 100 and 121, with runs far apart: ln 1, 1.21 about ln 1.1
    earlier = [
        session("a", {"ttft_p50_ms": 50.0}, {"ttft_p50_ms": 200.0}),
        session("b", {"ttft_p50_ms": 121.0}),
    ]
    (change,) = judge_stored(earlier, one_run(0.0, TTFT), [TTFT], USUAL)
    assert change.baseline == pytest.approx(110)
    assert change.sd == pytest.approx(math.log(1.21) / math.sqrt(2))


def test_one_earlier_session_shows_no_spread() -> None:
    change = judge_one([0.0], 0.5)
    assert change.claim is Claim.INCONCLUSIVE
    assert change.change.value == pytest.approx(math.expm1(0.5))
    assert (change.change.low, change.change.high, change.sd) == (None, None, None)
    assert "no spread from one earlier session: 2 are needed" in change.note


def test_sessions_without_any_spread_are_exact() -> None:
    change = judge_one([0.0, 0.0, 0.0], 0.2)
    assert change.change.low == pytest.approx(change.change.value)
    assert (change.sd, change.claim) == (0.0, Claim.FAIL)


def test_an_inconclusive_metric_says_how_many_sessions_would_decide() -> None:
    # two sessions: t of 1 degree 6.31 * .0141 sqrt(1.5) = .109 > .06; of three 2.92 * .0141 *
    # sqrt(4/3) = .0477 < .06
    change = judge_one([-0.01, 0.01], 0.06)
    assert (change.claim, change.note) == (
        Claim.INCONCLUSIVE,
        "about 3 earlier sessions would decide it",
    )
    change = judge_one([-0.1, 0.1], 0.05)
    assert "more sessions would not decide it" in change.note


def test_the_metrics_note_is_kept() -> None:
    noted = Gated("ttft_p95_ms", note="p95 stands in")
    assert judge_one([-0.01, 0.01], -0.1, noted).note == "p95 stands in"
    assert judge_one([0.0], 0.0, noted).note.startswith("p95 stands in; no spread")


def test_what_is_missing_is_told() -> None:
    with pytest.raises(UsageError, match="no earlier session"):
        judge_stored([], one_run(0, TTFT), [TTFT], USUAL)
    with pytest.raises(NotComparable, match="session empty has no runs"):
        judge_stored([one_run(0, TTFT), session("empty")], one_run(0, TTFT), [TTFT], USUAL)
    with pytest.raises(NotComparable, match="run s/0 has no value of e2e_p50_ms"):
        judge_stored([one_run(0, TTFT)], one_run(0, TTFT), [Gated("e2e_p50_ms")], USUAL)


# Simulated.

NUM_GATES = 2500


def off_by(share: float) -> float:
    """Three standard deviations of a binomial share."""
    return 3 * math.sqrt(share * (1 - share) / NUM_GATES)


@lru_cache
def simulated(num_sessions: int, sd: float, slowdown: float) -> tuple[float, float, float]:
    """Shares of gates that fail, whose low lies above the truth, and whose high lies below it."""
    rng = np.random.default_rng([num_sessions, int(1e4 * sd), int(100 * slowdown)])
    truth = math.log1p(slowdown)
    failed = below = above = 0
    for values in rng.normal(0, sd, (NUM_GATES, num_sessions + 1)).tolist():
        change = judge_one(values[1:], values[0] + truth)
        assert change.change.low is not None and change.change.high is not None
        failed += change.claim is Claim.FAIL
        below += slowdown < change.change.low
        above += change.change.high < slowdown
    return failed / NUM_GATES, below / NUM_GATES, above / NUM_GATES


@pytest.mark.parametrize("num_sessions", [2, 3, 5, 12])
def test_prediction_bounds_miss_one_time_in_twenty(num_sessions: int) -> None:
    _, below, above = simulated(num_sessions, 0.06, 0.10)
    assert abs(below - 0.05) <= off_by(0.05)
    assert abs(above - 0.05) <= off_by(0.05)


@pytest.mark.parametrize("num_sessions", [2, 5, 20])
def test_sessions_of_the_same_fail_one_time_in_twenty_at_most(num_sessions: int) -> None:
    assert simulated(num_sessions, 0.06, 0.0)[0] <= 0.05 + off_by(0.05)


@pytest.mark.parametrize(("num_sessions", "said"), [(5, 0.35), (20, 0.47)])
def test_power_at_ten_percent_is_what_statistics_says(num_sessions: int, said: float) -> None:
    """35% with 5 sessions and 47% with 20 are those of one metric at a session sd of 5.7%.

    That is a session offset of 5% and three runs of 5% each: .05 sqrt(1 + 1/3) = .0577. Four
    metrics, by the noncentral t, come to 13% and 23% only.
    """
    assert abs(simulated(num_sessions, 0.0572, 0.10)[0] - said) <= 0.005 + off_by(said)
