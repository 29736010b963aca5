"""Ramp and step: the asked rate at every time, and Poisson within it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dstune.load.arrivals import draw_offsets_ns
from dstune.profile.model import ArrivalKind, Arrivals

RAMP = Arrivals(kind=ArrivalKind.RAMP, rate_per_s=2, end_rate_per_s=20)
DOWN = Arrivals(kind=ArrivalKind.RAMP, rate_per_s=20, end_rate_per_s=2)
STEP = Arrivals(kind=ArrivalKind.STEP, rates_per_s=(5.0, 10.0, 20.0))


def offsets_s(arrivals: Arrivals, count: int, seed: int = 0) -> np.ndarray:
    drawn = draw_offsets_ns(arrivals, count, np.random.default_rng(seed))
    return np.array(drawn, dtype=float) / 1e9


@pytest.mark.parametrize("arrivals", [RAMP, DOWN], ids=["up", "down"])
def test_a_ramp_by_hand(arrivals: Arrivals) -> None:
    # 1100 requests at a mean of 11/s take 100 s; up, 2 t + 0.09 t^2 of them have come at t
    at = offsets_s(arrivals, 1100)
    assert at[0] == 0 and 98 < at[-1] < 100
    half = 2 * 50 + 0.09 * 50**2 if arrivals is RAMP else 20 * 50 - 0.09 * 50**2
    # of 1100 independent arrivals: within 4 standard deviations
    share = half / 1100
    assert abs(np.sum(at < 50) - half) < 4 * np.sqrt(1100 * share * (1 - share))


@pytest.mark.parametrize("arrivals", [RAMP, DOWN, STEP], ids=["up", "down", "step"])
def test_the_time_axis_is_bent_back_to_a_poisson_process_of_rate_one(arrivals: Arrivals) -> None:
    count = 4000
    at = offsets_s(arrivals, count, seed=3)
    length = count / arrivals.mean_rate_per_s  # type: ignore[operator]
    if arrivals is STEP:
        thirds = np.clip(at[:, None] - np.arange(3) * length / 3, 0, length / 3)
        reached = thirds @ np.array([5.0, 10.0, 20.0])
    else:
        first, last = arrivals.rate_per_s, arrivals.end_rate_per_s
        assert first is not None and last is not None
        reached = first * at + (last - first) / length * at**2 / 2
    assert reached[-1] == pytest.approx(count - 1, rel=1e-6)
    gaps = np.diff(reached)
    assert stats.kstest(gaps, "expon").pvalue > 0.01
    assert stats.kstest(reached / count, "uniform").pvalue > 0.01


def test_steps_have_equal_times_and_their_own_rates() -> None:
    # 3500 at a mean of 35/3 take 300 s: 500, 1000 and 2000 of them in 100 s each
    at = offsets_s(STEP, 3500, seed=1)
    counts = np.histogram(at, bins=[0, 100, 200, 300])[0]
    for count, expected in zip(counts, (500, 1000, 2000), strict=True):
        share = expected / 3500
        assert abs(count - expected) < 4 * np.sqrt(3500 * share * (1 - share))
    for second in range(3):
        gaps = np.diff(at[(at >= 100 * second) & (at < 100 * (second + 1))])
        rate = (5.0, 10.0, 20.0)[second]
        assert stats.kstest(gaps, "expon", args=(0, 1 / rate)).pvalue > 0.01


@settings(deadline=None, max_examples=50)
@given(
    rates=st.lists(st.floats(0.01, 1000), min_size=1, max_size=6),
    count=st.integers(1, 200),
    seed=st.integers(0, 1000),
)
def test_any_rates_give_ascending_times_within_the_load(
    rates: list[float], count: int, seed: int
) -> None:
    step = Arrivals(kind=ArrivalKind.STEP, rates_per_s=tuple(rates))
    ramp = Arrivals(kind=ArrivalKind.RAMP, rate_per_s=rates[0], end_rate_per_s=rates[-1])
    for arrivals in (step, ramp):
        at = offsets_s(arrivals, count, seed)
        assert len(at) == count and at[0] == 0 and (np.diff(at) >= 0).all()
        assert at[-1] <= count / arrivals.mean_rate_per_s * (1 + 1e-9)  # type: ignore[operator]


def test_a_ramp_between_equal_rates_is_poisson() -> None:
    flat = Arrivals(kind=ArrivalKind.RAMP, rate_per_s=8, end_rate_per_s=8)
    poisson = Arrivals(kind=ArrivalKind.POISSON, rate_per_s=8)
    assert offsets_s(flat, 50, 5) == pytest.approx(offsets_s(poisson, 50, 5), abs=1e-8)
