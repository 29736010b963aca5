"""Stats: whether a candidate predicts a text worse than its baseline.

The windows of the text are the sample: both sides score the same ones, so what a window's
difficulty adds to both cancels, and what is left varies little.
"""

from __future__ import annotations

import math

from dstune.errors import NotComparable
from dstune.measure.comparison import QualityChange, QualityScores
from dstune.measure.record import Claim, Estimate
from dstune.stats.intervals import mean_estimate


def quality_change(baseline: QualityScores, candidate: QualityScores, most: float) -> QualityChange:
    """The relative change of perplexity, by the t interval of the windows' log-likelihoods.

    Perplexity is exp(mean over windows), each of the same weight. FAIL where it rose for sure and
    by more than `most`, PASS where the interval excludes such a rise. Raises NotComparable where
    the sides did not score the same windows in the same precision.
    """
    _check_same(baseline, candidate)
    before, after = baseline.window_nlls, candidate.window_nlls
    differences = [b - a for a, b in zip(before, after, strict=True)]
    log_change = mean_estimate(differences)
    value, low, high = (
        None if one is None else math.expm1(one)
        for one in (log_change.value, log_change.low, log_change.high)
    )
    is_same = not any(differences)
    if is_same:  # also a single window has then no spread
        value = low = high = 0.0
    assert value is not None
    claim = Claim.INCONCLUSIVE
    if low is not None and low > 0 and value > most:
        claim = Claim.FAIL
    elif is_same or (high is not None and high < most):
        claim = Claim.PASS
    return QualityChange(
        precision=candidate.precision,
        kv_cache_dtype=candidate.kv_cache_dtype,
        num_tokens=candidate.num_tokens,
        baseline=math.exp(math.fsum(before) / len(before)),
        candidate=math.exp(math.fsum(after) / len(after)),
        change=Estimate(value=value, low=low, high=high),
        most=most,
        claim=claim,
    )


def _check_same(baseline: QualityScores, candidate: QualityScores) -> None:
    """Raises NotComparable with the first thing that differs, and scores that are no numbers."""
    num_before, num_after = len(baseline.window_nlls), len(candidate.window_nlls)
    for what, before, after in (
        ("precision", baseline.precision, candidate.precision),
        ("kv_cache_dtype", baseline.kv_cache_dtype, candidate.kv_cache_dtype),
        ("number of windows", num_before, num_after),
        ("number of tokens", baseline.num_tokens, candidate.num_tokens),
        ("text", baseline.text_digest, candidate.text_digest),
    ):
        if before != after:
            raise NotComparable(
                f"quality is not comparable: {what} {before} of the baseline, {after} of the "
                "candidate; score both with the same"
            )
    for side, scores in (("baseline", baseline), ("candidate", candidate)):
        if not scores.window_nlls or not all(map(math.isfinite, scores.window_nlls)):
            raise NotComparable(
                f"quality is not comparable: the {side}'s scores are missing or not finite; "
                "score it again"
            )
