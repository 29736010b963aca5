"""Stats: intervals of figures that are no plain means, by leaving blocks out.

Steps of one load are not independent, so the unit is a block: a whole load, or a batch of
consecutive steps. The figure is computed anew without each block in turn, and how far it moves
says how far it would have moved in another measurement (Efron & Tibshirani, An Introduction to the
Bootstrap, chapter 11; batch means: Law, Simulation Modeling and Analysis, 9.5.3).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dstune.measure.record import Estimate
from dstune.stats.intervals import CONFIDENCE

MOST_BATCHES = 10  # more are too short to be independent of each other
MIN_LOADS = 3  # from so many on, the load is the unit
_TAIL = (1 - CONFIDENCE) / 2

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Rows = NDArray[np.intp]


def batches(rows: Rows) -> list[Rows]:
    """Rows in order of time, cut into at most `MOST_BATCHES` consecutive batches."""
    return np.array_split(rows, min(len(rows), MOST_BATCHES)) if len(rows) else []


def half_widths(replicates: Sequence[Sequence[Array]]) -> Array:
    """Half the 95% interval of every figure.

    `replicates`: for each stratum (of blocks that are independent of the other strata's) the
    figures without each of its blocks, of any one shape. The variances of strata add up; degrees
    of freedom are Satterthwaite's. NaN where a stratum has a single block, or a figure was NaN.
    """
    variance, quartic = np.zeros(()), np.zeros(())
    for stratum in replicates:
        values, num = np.stack(stratum), len(stratum)
        if num < 2:
            return np.full(values.shape[1:], np.nan)
        of_stratum = (num - 1) / num * np.sum((values - values.mean(axis=0)) ** 2, axis=0)
        variance = variance + of_stratum
        quartic = quartic + of_stratum**2 / (num - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = np.where(quartic > 0, variance**2 / quartic, 1.0)
    found: Array = special.stdtrit(freedom, 1 - _TAIL) * np.sqrt(variance)
    return found


def estimate(value: float, half: float) -> Estimate:
    """A figure and half its interval; NaN becomes None."""
    if np.isnan(value):
        return Estimate(value=None)
    if np.isnan(half):
        return Estimate(value=float(value))
    return Estimate(value=float(value), low=float(value - half), high=float(value + half))
