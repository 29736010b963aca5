"""Load: when each request is meant to be sent, drawn beforehand.

Offsets are nanoseconds after the start of the run. The first request is sent at once, the gaps
follow the asked process and are scaled so that their mean is exactly the asked one: a Poisson
process with its number of arrivals given (exponential gaps over their sum are uniform spacings).
Otherwise a few dozen requests would offer a rate 15% off, a different one in each repetition.

A stall of client or target never moves a later offset: that is what
makes latency from the intended send time honest.
"""

from __future__ import annotations

import numpy as np

from dstune.profile.model import ArrivalKind, Arrivals

NS_PER_S = 1_000_000_000


def draw_offsets_ns(
    arrivals: Arrivals, num_requests: int, rng: np.random.Generator
) -> list[int | None]:
    """Intended send times in ascending order; None throughout for a closed loop."""
    if arrivals.kind is ArrivalKind.CONCURRENCY:
        return [None] * num_requests
    drawn = _draw_gaps_s(arrivals, num_requests - 1, rng)
    if arrivals.rate_per_s is not None and drawn.sum() > 0:
        drawn = drawn * (len(drawn) / arrivals.rate_per_s / drawn.sum())
    gaps_s = np.concatenate([[0.0], drawn])
    return [round(offset * NS_PER_S) for offset in np.cumsum(gaps_s).tolist()]


def _draw_gaps_s(
    arrivals: Arrivals, num_gaps: int, rng: np.random.Generator
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    if arrivals.kind is ArrivalKind.ALL_AT_ONCE:
        return np.zeros(num_gaps)
    assert arrivals.rate_per_s is not None
    mean_s = 1.0 / arrivals.rate_per_s
    if arrivals.kind is ArrivalKind.CONSTANT:
        return np.full(num_gaps, mean_s)
    if arrivals.kind is ArrivalKind.POISSON:
        return rng.exponential(mean_s, num_gaps)
    assert arrivals.kind is ArrivalKind.GAMMA and arrivals.cv is not None
    # Gamma(k, theta): mean k theta, cv 1 / sqrt(k)
    shape = arrivals.cv**-2
    return rng.gamma(shape, mean_s / shape, num_gaps)
