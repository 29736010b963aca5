"""Stats: percentiles and the 95% confidence intervals of every figure.

Which interval a figure has follows from what varies in it: a percentile of requests an
order-statistic interval, a mean over repetitions a t interval, a share of requests a
Clopper-Pearson interval, a ratio of paired repetitions a t interval of its logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from dstune.measure.record import Estimate

CONFIDENCE = 0.95
_TAIL = (1 - CONFIDENCE) / 2


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Linear interpolation between the raw samples; None without any."""
    if len(values) < 2:  # numpy takes 50 us to say the same of one value, once per request
        return float(values[0]) if len(values) else None
    return float(np.percentile(np.asarray(values), percent))


def percentile_estimate(values: Sequence[float], percent: float) -> Estimate:
    """A percentile between the order statistics that enclose it with at least 95% confidence.

    Of n independent samples, the number below the true quantile is binomial(n, q), whatever
    their distribution (David & Nagaraja, Order Statistics, 7.1). A bound that would lie beyond
    the extreme samples is None: the p99 of 100 samples has no upper bound.
    """
    num = len(values)
    if num == 0:
        return Estimate(value=None)
    ordered = np.sort(np.asarray(values, dtype=float))
    at_most = special.bdtr(np.arange(num), num, percent / 100)  # P(at most k below), k < num
    lower = int(np.searchsorted(at_most, _TAIL, side="right")) - 1
    upper = int(np.searchsorted(at_most, 1 - _TAIL, side="left"))
    return Estimate(
        value=percentile(values, percent),
        low=float(ordered[lower]) if lower >= 0 else None,
        high=float(ordered[upper]) if upper < num else None,
    )


def mean_estimate(values: Sequence[float]) -> Estimate:
    """A mean with Student's t interval; without a spread to see, no interval."""
    num = len(values)
    if num == 0:
        return Estimate(value=None)
    mean = float(np.mean(values))
    if num == 1:
        return Estimate(value=mean)
    half = float(special.stdtrit(num - 1, 1 - _TAIL) * np.std(values, ddof=1) / math.sqrt(num))
    return Estimate(value=mean, low=mean - half, high=mean + half)


def share_estimate(num_of: int, num: int) -> Estimate:
    """A share with its Clopper-Pearson interval."""
    if num == 0:
        return Estimate(value=None)
    low = special.betaincinv(num_of, num - num_of + 1, _TAIL) if num_of > 0 else 0.0
    high = special.betaincinv(num_of + 1, num - num_of, 1 - _TAIL) if num_of < num else 1.0
    return Estimate(value=num_of / num, low=float(low), high=float(high))


def ratio_estimate(pairs: Sequence[tuple[float, float]]) -> Estimate:
    """The typical ratio of (new, old) pairs: the geometric mean, by the t interval of its log.

    Pairing is by repetition: both sides met the same prompts, arrivals and moment. None where a
    value is not above zero.
    """
    if not pairs or any(new <= 0 or old <= 0 for new, old in pairs):
        return Estimate(value=None)
    logs = mean_estimate([math.log(new / old) for new, old in pairs])
    bounds = (None if one is None else math.exp(one) for one in (logs.value, logs.low, logs.high))
    value, low, high = bounds
    return Estimate(value=value, low=low, high=high)
