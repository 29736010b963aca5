"""The paired gate by simulation: the error rates and the power that it promises.

Simulated runs: each run has a log-normal effect of the given sd, half of whose variance both runs
of a pair share, so that D has the sd of a run. Four metrics: one is slowed, and the effects of
two metrics are correlated by a half; so is the table of statistics.md reproduced within a point
by 60,000 simulated gates per entry (2/41/98/100 and 5/21/68/100 for four metrics; were the
metrics independent, 2/42/98/100 and 5.5/23/70/100).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pytest

from dstune.measure.comparison import MetricChange, RunFigures, Thresholds
from dstune.measure.record import Claim
from dstune.stats.paired import ALPHAS, BETAS, GATED, LOOKS, Gated, judge, overall, power

TTFT = Gated("ttft_p50_ms")
USUAL = Thresholds()

Side = list[RunFigures]

NUM_GATES = 2500
SLOWDOWNS = (0.0, 0.05, 0.10, 0.20)
TABLE = {  # statistics.md: % FAIL by run sd and number of metrics, at each slowdown
    (0.05, 1): (2, 58, 99, 100),
    (0.10, 1): (4, 39, 87, 100),
    (0.05, 4): (2, 40, 98, 100),
    (0.10, 4): (5, 21, 69, 100),
}


def run_effects(rng: np.random.Generator, sd: float, num_metrics: int, like: float) -> np.ndarray:
    """[2 sides, num_metrics, 12 pairs] of ln, above 0 worse; half the variance is the pair's."""
    shape = (3, num_metrics, LOOKS[-1])
    common = rng.standard_normal((3, 1, LOOKS[-1]))
    own = rng.standard_normal(shape)
    drawn = sd * math.sqrt(0.5) * (math.sqrt(like) * common + math.sqrt(1 - like) * own)
    return drawn[:2] + drawn[2]


def simulated_sides(
    rng: np.random.Generator, sd: float, slowdown: float, metrics: Sequence[Gated], like: float
) -> tuple[Side, Side]:
    worse = run_effects(rng, sd, len(metrics), like)
    worse[1, 0] += math.log1p(slowdown)
    signs = np.array([[-1.0 if metric.is_higher_better else 1.0] for metric in metrics])
    before, after = (
        [
            RunFigures(
                name="run",
                started_utc="",
                num_ok=2000,
                num_failed=0,
                figures={one.name: value for one, value in zip(metrics, column, strict=True)},
            )
            for column in (100 * np.exp(signs * side)).T.tolist()
        ]
        for side in worse
    )
    return before, after


def stopped(before: Side, after: Side, metrics: Sequence[Gated]) -> tuple[int, list[MetricChange]]:
    """The look at which a gate stops, and what it says there."""
    for num in LOOKS:
        changes = list(judge(before[:num], after[:num], metrics, USUAL))
        if overall(changes) is not Claim.INCONCLUSIVE:
            break
    return num, changes


@lru_cache
def simulated(sd: float, num_metrics: int, slowdown: float, like: float = 0.5) -> dict[Claim, int]:
    """How often each verdict came out of NUM_GATES gates."""
    rng = np.random.default_rng([int(1000 * sd), num_metrics, int(1000 * slowdown)])
    metrics = GATED[:num_metrics]
    counts = dict.fromkeys(Claim, 0)
    for _ in range(NUM_GATES):
        _, changes = stopped(*simulated_sides(rng, sd, slowdown, metrics, like), metrics)
        counts[overall(changes)] += 1
    return counts


def off_by(share: float, num: int) -> float:
    """Three standard deviations of a binomial share."""
    return 3 * math.sqrt(share * (1 - share) / num)


@pytest.mark.parametrize(("sd", "num_metrics"), TABLE)
def test_false_alarms_of_the_same_against_itself_are_five_percent_at_most(
    sd: float, num_metrics: int
) -> None:
    assert simulated(sd, num_metrics, 0.0)[Claim.FAIL] / NUM_GATES <= 0.05 + off_by(0.05, NUM_GATES)


@pytest.mark.parametrize("slowdown", SLOWDOWNS)
@pytest.mark.parametrize(("sd", "num_metrics"), TABLE)
def test_failures_are_as_frequent_as_the_table_says(
    sd: float, num_metrics: int, slowdown: float
) -> None:
    said = TABLE[sd, num_metrics][SLOWDOWNS.index(slowdown)] / 100
    found = simulated(sd, num_metrics, slowdown)[Claim.FAIL] / NUM_GATES
    # within the binomial's three sd, beside the table's own rounding and simulation: 1 point
    assert abs(found - said) <= 0.01 + off_by(said, NUM_GATES)


def test_an_underpowered_gate_mostly_ends_inconclusive() -> None:
    # 12 pairs of sd 40%: the error of the mean, 11.5%, exceeds both the slowdown and the margin.
    # By 60,000 simulated gates 10% fail, 14% pass, 76% end inconclusive
    found = simulated(0.40, 1, 0.05)[Claim.INCONCLUSIVE] / NUM_GATES
    assert abs(found - 0.757) <= off_by(0.757, NUM_GATES)


@pytest.mark.parametrize("sd", [0.05, 0.10])
def test_a_slowdown_of_the_margin_passes_no_oftener_than_the_betas_allow(sd: float) -> None:
    # .03 + .03 + .05 were the looks independent; a failure at an earlier look makes it fewer
    passes = simulated(sd, 1, 0.10)[Claim.PASS] / NUM_GATES
    assert passes <= sum(BETAS)


@pytest.mark.parametrize("num_metrics", [1, 4])
@pytest.mark.parametrize("look", [0, 1, 2])
def test_bounds_at_a_given_look_miss_as_often_as_promised(look: int, num_metrics: int) -> None:
    """Below the lower bound alpha / m of the time, above the upper one beta: exact for normal D."""
    rng = np.random.default_rng([7, look, num_metrics])
    num, truth, trials = LOOKS[look], 0.07, 4000
    metrics = GATED[:num_metrics]
    below = above = 0
    for _ in range(trials):
        before, after = simulated_sides(rng, 0.08, truth, metrics, 0.5)
        change = judge(before[:num], after[:num], metrics, USUAL)[0].change
        assert change.low is not None and change.high is not None
        below += truth < change.low
        above += change.high < truth
    for misses, promised in ((below, ALPHAS[look] / num_metrics), (above, BETAS[look])):
        assert abs(misses / trials - promised) <= off_by(promised, trials)


@pytest.mark.parametrize("truth", [0.0, 0.05, 0.10])
def test_bounds_at_the_stopping_look_miss_at_most_by_the_sum_of_the_looks(truth: float) -> None:
    """A gate stops where it sees something, so the bounds there miss more often than each look's.

    Yet never more than at some look: 7% below and 11% above. The claims rest on those sums.
    """
    rng = np.random.default_rng([11, int(100 * truth)])
    trials, below, above = 2000, 0, 0
    for _ in range(trials):
        _, (change, *_) = stopped(*simulated_sides(rng, 0.10, truth, [TTFT], 0.5), [TTFT])
        assert change.change.low is not None and change.change.high is not None
        below += truth < change.change.low
        above += change.change.high < truth
    assert below / trials <= sum(ALPHAS) + off_by(sum(ALPHAS), trials)
    assert above / trials <= sum(BETAS) + off_by(sum(BETAS), trials)


@pytest.mark.parametrize("sd", [0.05, 0.10])
def test_power_is_what_gates_of_one_metric_show(sd: float) -> None:
    for slowdown, said in zip(SLOWDOWNS, TABLE[sd, 1], strict=True):
        assert power(sd, slowdown, 1, USUAL) == pytest.approx(said / 100, abs=0.012)
        found = simulated(sd, 1, slowdown)[Claim.FAIL] / NUM_GATES
        foretold = power(sd, slowdown, 1, USUAL)
        assert abs(found - foretold) <= 0.005 + off_by(foretold, NUM_GATES)


def test_power_of_one_metric_among_four_is_a_little_below_the_gates() -> None:
    # the gate also fails on one of the three that are not slowed, and waits for them to pass
    for sd in (0.05, 0.10):
        said = TABLE[sd, 4][SLOWDOWNS.index(0.10)] / 100
        assert said - 0.03 <= power(sd, 0.10, 4, USUAL) <= said + 0.005


def test_power_without_spread_is_certain() -> None:
    assert power(0.0, 0.10, 4, USUAL) == 1.0
    assert power(0.0, 0.02, 4, USUAL) == 0.0
    assert power(0.05, 0.10, 1, USUAL) > power(0.05, 0.10, 4, USUAL) > power(0.10, 0.10, 4, USUAL)
