"""Change points: found where a level changes, told seldom where none does."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from dstune.stats.change_points import ALPHA, MIN_RUNS, change_points

STEP = math.log(1.15)


def series(
    rng: np.random.Generator, levels: list[tuple[float, int]], sd: float = 0.03
) -> list[float]:
    """Runs of one level after the other, each (ln level, number of runs), log-normal about it."""
    typical = np.concatenate([np.full(num, level) for level, num in levels])
    found: list[float] = (80 * np.exp(typical + rng.normal(0, sd, len(typical)))).tolist()
    return found


def off_by(share: float, num: int) -> float:
    """Three standard deviations of a binomial share."""
    return 3 * math.sqrt(share * (1 - share) / num)


def test_a_step_that_leaves_no_overlap() -> None:
    assert change_points([10, 11, 10.5, 10.2, 14, 13.5, 13.8, 14.2]) == [4]
    assert change_points([14, 13.5, 13.8, 14.2, 10, 11, 10.5, 10.2]) == [4]  # down, too


def test_below_eight_runs_no_change_is_told() -> None:
    for num in range(MIN_RUNS):
        assert change_points([1.0] * (num // 2) + [50.0] * (num - num // 2)) == []


def test_eight_runs_are_the_fewest_that_can_show_one() -> None:
    # of the 35 ways to choose 3 of 7 runs as the highest, 2 put them at an end: 2 / 35 > .05;
    # and as highest or lowest 4 of 8, 2 of 70: .029
    def at_an_end(num: int, high: int) -> float:
        chosen = list(combinations(range(num), high))
        return sum(one in (chosen[0], chosen[-1]) for one in chosen) / len(chosen)

    assert at_an_end(7, 3) > ALPHA > at_an_end(8, 4)


@pytest.mark.parametrize("values", [[], [5.0] * 30, [1.0, 2.0] * 15])
def test_nothing_changes_in_a_steady_series(values: list[float]) -> None:
    assert change_points(values) == []


def test_equal_values_share_their_rank() -> None:
    assert change_points([7.0] * 6 + [9.0] * 6) == [6]


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_value_that_is_no_figure_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        change_points([1.0] * 9 + [value])


def test_the_same_series_has_the_same_changes_in_every_unit_and_in_reverse() -> None:
    values = series(np.random.default_rng(4), [(0, 12), (STEP, 9), (0, 14)])
    found = change_points(values)
    assert found == [12, 21]
    assert change_points(values) == found
    assert change_points([1000 * value for value in values]) == found
    assert change_points([1 / value for value in values]) == found
    assert change_points(values[::-1]) == [35 - at for at in reversed(found)]


@pytest.mark.parametrize("num", [5, 8, 10, 12, 16, 20, 25, 30, 40, 50, 60])
@pytest.mark.parametrize("shape", ["normal", "skewed"])
def test_a_series_without_a_change_is_told_to_have_one_in_five_percent(
    num: int, shape: str
) -> None:
    rng = np.random.default_rng([num, shape == "skewed"])
    trials = 1500
    draw = rng.standard_normal if shape == "normal" else rng.standard_exponential
    told = sum(bool(change_points(np.exp(0.05 * draw(num)).tolist())) for _ in range(trials))
    # half a point beside the binomial: the shuffled series are a sample, too
    assert told / trials <= ALPHA + 0.005 + off_by(ALPHA, trials)


@pytest.mark.parametrize("at", [0, 1, 9, 10, 19])
@pytest.mark.parametrize("size", [0.1, 10.0])
def test_single_outliers_are_no_level(at: int, size: float) -> None:
    rng = np.random.default_rng([at, int(size)])
    told = 0
    for _ in range(500):
        values = series(rng, [(0, 20)])
        values[at] *= size
        told += bool(change_points(values))
    assert told / 500 <= ALPHA + off_by(ALPHA, 500)


@pytest.mark.parametrize(
    ("levels", "expected", "share"),
    [
        ([(0, 10), (STEP, 10)], [10], 0.90),
        ([(STEP, 10), (0, 10)], [10], 0.90),
        ([(0, 16), (STEP, 4)], [16], 0.85),
        ([(0, 10), (STEP, 10), (0, 10)], [10, 20], 0.85),
        ([(0, 20), (STEP, 5), (0, 20)], [20, 25], 0.80),
        ([(0, 10), (STEP, 10), (2 * STEP, 10)], [10, 20], 0.80),
    ],
    ids=["up", "down", "late", "up-and-down", "a-short-while", "stairs"],
)
def test_steps_of_fifteen_percent_are_found_where_they_are(
    levels: list[tuple[float, int]], expected: list[int], share: float
) -> None:
    """Of 300 series of sd 3%: one of each change within a run of the place in nearly all.

    And exactly these changes, no more and none beside, in `share` of the series at least.
    """
    rng = np.random.default_rng(len(levels))
    exact = near = 0
    for _ in range(300):
        found = change_points(series(rng, levels))
        exact += found == expected
        near += all(any(abs(one - at) <= 1 for one in found) for at in expected)
    assert near >= 0.98 * 300
    assert exact >= share * 300


def test_an_outlier_does_not_hide_a_step() -> None:
    # within two runs of the step, a wild run may as well belong to the other level
    rng = np.random.default_rng(8)
    found = 0
    for _ in range(300):
        values = series(rng, [(0, 10), (STEP, 10)])
        values[int(rng.choice([*range(8), *range(12, 20)]))] *= 10
        told = change_points(values)
        found += any(abs(one - 10) <= 1 for one in told)
        edges = [0, *told, 20]
        assert min(np.diff(edges)) >= 3  # the wild run is never a level of its own
    assert found >= 0.98 * 300
