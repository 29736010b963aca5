"""Quality: the perplexity's change, paired by window."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dstune.errors import NotComparable
from dstune.measure.comparison import QualityScores
from dstune.measure.record import Claim
from dstune.stats.quality import quality_change

MOST = 0.005


def scores(*window_nlls: float, **changed: Any) -> QualityScores:
    fields: dict[str, Any] = {
        "precision": "bf16",
        "kv_cache_dtype": "auto",
        "text_digest": "d1",
        "num_tokens": 512,
        "window_nlls": window_nlls,
    }
    return QualityScores(**{**fields, **changed})


def test_every_number_of_three_windows() -> None:
    # differences .01 .02 .03: mean .02, sd .01, of the mean .0057735; t of 2 degrees 4.30265:
    # the interval in ln is .02 -+ .0248414
    found = quality_change(scores(1.0, 2.0, 3.0), scores(1.01, 2.02, 3.03), MOST)
    assert found.baseline == pytest.approx(math.exp(2))
    assert found.candidate == pytest.approx(math.exp(2.02))
    assert found.change.value == pytest.approx(math.exp(0.02) - 1)
    assert found.change.low == pytest.approx(math.exp(-0.0048414) - 1, rel=1e-4)
    assert found.change.high == pytest.approx(math.exp(0.0448414) - 1, rel=1e-5)
    assert found.claim is Claim.INCONCLUSIVE
    assert (found.precision, found.kv_cache_dtype) == ("bf16", "auto")
    assert (found.num_tokens, found.most) == (512, MOST)


@pytest.mark.parametrize(
    ("differences", "most", "said"),
    [
        ((0.020, 0.021, 0.022), 0.005, Claim.FAIL),
        ((0.020, 0.021, 0.022), 0.030, Claim.PASS),
        ((-0.020, -0.021, -0.022), 0.0, Claim.PASS),
        ((0.0040, 0.0041, 0.0042), 0.005, Claim.PASS),  # worse for sure, but by less
        ((0.0046, 0.0047, 0.0051), 0.005, Claim.INCONCLUSIVE),  # less, but not for sure
        ((0.0049, 0.0050, 0.0057), 0.005, Claim.FAIL),  # more, though not for sure by `most`
        ((-0.05, 0.01, 0.08), 0.005, Claim.INCONCLUSIVE),
    ],
)
def test_the_interval_decides(differences: tuple[float, ...], most: float, said: Claim) -> None:
    before = (1.0, 5.0, 2.0)  # windows differ in difficulty far more than the sides do
    after = [a + d for a, d in zip(before, differences, strict=True)]
    assert quality_change(scores(*before), scores(*after), most).claim is said


@pytest.mark.parametrize("nlls", [(1.7,), (1.0, 3.0)])
def test_the_same_scores_pass_even_where_nothing_may_be_lost(nlls: tuple[float, ...]) -> None:
    found = quality_change(scores(*nlls), scores(*nlls), 0.0)
    assert (found.change.value, found.change.low, found.change.high) == (0.0, 0.0, 0.0)
    assert found.claim is Claim.PASS


def test_one_window_that_differs_shows_no_spread() -> None:
    found = quality_change(scores(1.0), scores(1.5), MOST)
    assert found.claim is Claim.INCONCLUSIVE
    assert (found.change.low, found.change.high) == (None, None)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"precision": "int8"}, "precision bf16 of the baseline, int8 of the candidate"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype auto .* fp8"),
        ({"text_digest": "d2"}, "text d1 .* d2"),
        ({"num_tokens": 256}, "number of tokens 512 .* 256"),
        ({"window_nlls": (1.0,)}, "number of windows 2 .* 1"),
        ({"window_nlls": (1.0, math.nan)}, "candidate's scores .* not finite"),
    ],
)
def test_what_was_not_scored_alike_is_not_comparable(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(NotComparable, match=said):
        quality_change(scores(1.0, 2.0), scores(1.0, 2.0, **changed), MOST)


def test_without_scores_nothing_is_comparable() -> None:
    with pytest.raises(NotComparable, match="baseline's scores are missing"):
        quality_change(scores(), scores(), MOST)


def test_the_interval_covers_the_true_change() -> None:
    rng = np.random.default_rng(2)
    trials, hits, truth = 1000, 0, 0.01
    for _ in range(trials):
        before = rng.gamma(4, 0.6, 24)
        after = before + truth + rng.normal(0, 0.02, 24)
        change = quality_change(scores(*before), scores(*after), MOST).change
        assert change.low is not None and change.high is not None
        hits += change.low <= math.expm1(truth) <= change.high
    assert hits / trials == pytest.approx(0.95, abs=3 * (0.05 * 0.95 / trials) ** 0.5)
