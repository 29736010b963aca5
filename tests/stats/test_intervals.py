"""Intervals keep their promise, and claims need as many samples as statistics says."""

from __future__ import annotations

import numpy as np
import pytest

from dstune.measure.record import Claim
from dstune.stats.claims import claim, num_needed
from dstune.stats.intervals import (
    mean_estimate,
    percentile,
    percentile_estimate,
    ratio_estimate,
    share_estimate,
)


def covers(low: float | None, high: float | None, truth: float) -> bool:
    return (low is None or low <= truth) and (high is None or truth <= high)


def test_percentile_is_linear_interpolation() -> None:
    assert percentile([10, 20, 30, 40], 50) == 25
    assert percentile([10, 20], 99) == pytest.approx(19.9)
    assert percentile([], 50) is None


def test_a_percentile_beyond_the_samples_has_an_open_interval() -> None:
    estimate = percentile_estimate(list(range(100)), 99)
    assert estimate.high is None and estimate.low is not None
    one = percentile_estimate([5.0], 50)
    assert (one.value, one.low, one.high) == (5.0, None, None)


def test_the_median_of_ten_lies_between_the_second_and_the_ninth() -> None:
    # P(2 <= Bin(10, 1/2) <= 8) = 97.9%, the classical interval of the sign test
    estimate = percentile_estimate([float(at) for at in range(1, 11)], 50)
    assert (estimate.low, estimate.high) == (2.0, 9.0)


@pytest.mark.parametrize(("percent", "num"), [(50, 20), (50, 200), (90, 100), (95, 300), (99, 800)])
def test_percentile_intervals_cover(percent: float, num: int) -> None:
    rng = np.random.default_rng(0)
    truth = float(np.exp(0.6 * {50: 0.0, 90: 1.2816, 95: 1.6449, 99: 2.3263}[percent]))
    trials = 800
    hits = 0
    for _ in range(trials):
        estimate = percentile_estimate(rng.lognormal(0, 0.6, num).tolist(), percent)
        hits += covers(estimate.low, estimate.high, truth)
    assert hits / trials >= 0.95 - 3 * (0.05 * 0.95 / trials) ** 0.5


@pytest.mark.parametrize("num", [2, 3, 5, 20])
def test_mean_intervals_cover(num: int) -> None:
    rng = np.random.default_rng(1)
    trials = 1500
    estimates = [mean_estimate(rng.normal(100, 7, num).tolist()) for _ in range(trials)]
    hits = sum(covers(one.low, one.high, 100) for one in estimates)
    assert hits / trials == pytest.approx(0.95, abs=3 * (0.05 * 0.95 / trials) ** 0.5)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_share_intervals_cover(share: float) -> None:
    rng = np.random.default_rng(2)
    estimates = [share_estimate(int(rng.binomial(200, share)), 200) for _ in range(1000)]
    hits = sum(covers(one.low, one.high, share) for one in estimates)
    assert hits / 1000 >= 0.95 - 3 * (0.05 * 0.95 / 1000) ** 0.5


@pytest.mark.parametrize("rounds", [3, 5])
def test_ratio_intervals_cover_under_a_shared_drift(rounds: int) -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(1500):
        drift = rng.lognormal(0, 0.2, rounds)
        new, old = (
            1.3 * drift * rng.lognormal(0, 0.05, rounds),
            drift * rng.lognormal(0, 0.05, rounds),
        )
        one = ratio_estimate(list(zip(new.tolist(), old.tolist(), strict=True)))
        hits += covers(one.low, one.high, 1.3)
    assert hits / 1500 == pytest.approx(0.95, abs=0.02)


def test_estimates_of_too_little() -> None:
    assert mean_estimate([]).value is None
    assert mean_estimate([3.0]).low is None
    assert share_estimate(0, 0).value is None
    assert (share_estimate(0, 10).low, share_estimate(10, 10).high) == (0.0, 1.0)
    assert ratio_estimate([]).value is None
    assert ratio_estimate([(1.0, 0.0)]).value is None


@pytest.mark.parametrize(
    ("percent", "needed"), [(99, [299, 473, 628, 1049]), (95, [59, 93, 124, 208])]
)
def test_requests_needed_to_claim_a_percentile(percent: int, needed: list[int]) -> None:
    allowed = 1 - percent / 100
    for num_over, num in zip((0, 1, 2, 5), needed, strict=True):
        assert num_needed(num_over, allowed) == num
        assert claim(num, num_over, allowed) is Claim.PASS
        assert claim(num - 1, num_over, allowed) is Claim.INCONCLUSIVE


def test_a_broken_promise_fails_and_an_absolute_one_cannot_be_claimed() -> None:
    assert claim(100, 5, 0.01) is Claim.FAIL
    assert claim(0, 0, 0.01) is Claim.INCONCLUSIVE
    assert num_needed(0, 0.0) is None
    assert claim(1000, 0, 0.0) is Claim.INCONCLUSIVE
    assert claim(1000, 1, 0.0) is Claim.FAIL


def test_false_claims_are_rarer_than_5_percent() -> None:
    rng = np.random.default_rng(4)
    over = rng.binomial(600, 0.01, 4000)  # exactly at the promise: a pass would be false
    passes = sum(claim(600, int(one), 0.01) is Claim.PASS for one in over)
    fails = sum(claim(600, int(one), 0.01) is Claim.FAIL for one in over)
    assert passes / 4000 < 0.05 and fails / 4000 < 0.05
