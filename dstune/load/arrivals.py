"""Load: when each request is meant to be sent, drawn beforehand.

Offsets are nanoseconds after the start of the run. The first request is sent at once, the gaps
follow the asked process and are scaled so that their mean is exactly the asked one: a Poisson
process with its number of arrivals given (exponential gaps over their sum are uniform spacings).
Otherwise a few dozen requests would offer a rate 15% off, a different one in each repetition.

A rate that changes bends the time axis: an arrival that would be the u-th of a process of rate 1
comes when the rate's integral has reached u. Given their number, the arrivals of a Poisson process
with a varying rate are just that (Cinlar's inversion).

A stall of client or target never moves a later offset: that is what
makes latency from the intended send time honest.
"""

from __future__ import annotations

import numpy as np

from dstune.profile.model import ArrivalKind, Arrivals

NS_PER_S = 1_000_000_000

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


def draw_offsets_ns(
    arrivals: Arrivals,
    num_requests: int,
    rng: np.random.Generator,
    num_sessions: int | None = None,
) -> list[int | None]:
    """Intended send times in ascending order; None throughout for a closed loop.

    With `num_sessions` there is one for each session, so that their requests have the rate.
    """
    num = num_requests if num_sessions is None else num_sessions
    if arrivals.kind is ArrivalKind.CONCURRENCY:
        return [None] * num
    if arrivals.kind is ArrivalKind.ALL_AT_ONCE:
        return [0] * num
    gaps = _draw_gaps(arrivals, num - 1, rng)
    if gaps.sum() > 0:
        gaps = gaps * (num_requests / num) * (len(gaps) / gaps.sum())
    reached = np.cumsum(np.concatenate([[0.0], gaps]))
    return [round(at * NS_PER_S) for at in _times_s(arrivals, reached, num_requests).tolist()]


def _draw_gaps(arrivals: Arrivals, num_gaps: int, rng: np.random.Generator) -> Floats:
    """Gaps of a process of rate 1."""
    if arrivals.kind is ArrivalKind.CONSTANT:
        return np.ones(num_gaps)
    if arrivals.kind is not ArrivalKind.GAMMA:
        return rng.exponential(1.0, num_gaps)
    assert arrivals.cv is not None
    # Gamma(k, theta): mean k theta, cv 1 / sqrt(k)
    shape = arrivals.cv**-2
    return rng.gamma(shape, 1.0 / shape, num_gaps)


def _times_s(arrivals: Arrivals, reached: Floats, num_requests: int) -> Floats:
    """When the integral of the rate reaches each value; over the whole load it is the number."""
    mean = arrivals.mean_rate_per_s
    assert mean is not None
    length_s = num_requests / mean
    if arrivals.kind is ArrivalKind.RAMP:
        assert arrivals.rate_per_s is not None and arrivals.end_rate_per_s is not None
        first = arrivals.rate_per_s
        slope = (arrivals.end_rate_per_s - first) / length_s
        # the root of first t + slope t^2 / 2 = reached, in the form without cancellation
        return 2 * reached / (first + np.sqrt(np.maximum(first**2 + 2 * slope * reached, 0.0)))
    if arrivals.kind is ArrivalKind.STEP:
        assert arrivals.rates_per_s is not None
        edges_s = np.linspace(0.0, length_s, len(arrivals.rates_per_s) + 1)
        at_edges = np.concatenate([[0.0], np.cumsum(np.diff(edges_s) * arrivals.rates_per_s)])
        return np.interp(reached, at_edges, edges_s)
    return reached / mean
