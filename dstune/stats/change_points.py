"""Stats: where in a series of earlier runs a figure went to a new level.

Circular binary segmentation (Olshen et al., Biostatistics 2004) on ranks: the stretch of runs
that stands out most from the rest is kept if shuffled series show one like it too rarely, then
both sides of every change are searched in the same way. A rank says nothing of how far an
outlier lies, so that a single wild run is no new level, and needs no estimate of the noise. Where
a change lies is then settled by the values, since ranks draw it towards the middle. Shuffling
assumes that runs of one level are independent: a slow drift is told as a change too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

ALPHA = 0.05
"""How often a series without any change is told to have one, over the whole series."""
MIN_LEVEL = 3
"""Runs that make a level; fewer are outliers."""
MIN_RUNS = 8
"""Of fewer, even 3 runs all above the others are no evidence: 2 in 35 orders have them so."""

_NUM_SHUFFLED = 9999  # holds ALPHA within half a point
_SEED = 20_040_417
_INNER = 0.75
"""What the gain of a stretch within the series counts, which takes two changes and not one.

Any weight holds ALPHA, for shuffled series are weighed alike; this one shares the power out.
"""

Floats = NDArray[np.float64]


def change_points(values: Sequence[float]) -> list[int]:
    """Where new levels begin, as indices in order; empty below MIN_RUNS values.

    Raises ValueError where a value is not a number above 0.
    """
    if not all(0 < value < math.inf for value in values):
        raise ValueError("a series of figures has values above 0 only")
    found: list[int] = []
    logs = np.log(np.asarray(values, dtype=float))
    parts = [(0, len(logs))] if len(logs) else []
    while parts:
        start, end = parts.pop()
        part = logs[start:end]
        # the parts share ALPHA, so that further changes are no easier found than the first
        cuts = _settled(part, _cuts(part, ALPHA * len(part) / len(logs)))
        if cuts:
            edges = [start, *(start + cut for cut in cuts), end]
            found += edges[1:-1]
            parts += pairwise(edges)
    return _settled(logs, sorted(found))  # again, with the later cuts as neighbours


def _cuts(values: Floats, alpha: float) -> list[int]:
    """The one or two ends of the stretch that stands out, inside the series; none if by chance."""
    num = len(values)
    if num < MIN_RUNS:
        return []
    ranks = _midranks(values)
    gain, start, end = 0.0, 0, num
    sums = _running_sums(ranks[None])
    for length in _lengths(num):
        gains = _gains(sums, length)[0]
        at = int(gains.argmax())
        if gains[at] > gain:
            gain, start, end = float(gains[at]), at, at + length
    shuffled = _shuffled_gains(tuple(np.sort(ranks).tolist()))
    num_alike = int((shuffled >= gain * (1 - 1e-9)).sum())
    if (1 + num_alike) / (1 + len(shuffled)) > alpha:
        return []
    return [cut for cut in (start, end) if 0 < cut < num]


def _settled(values: Floats, cuts: list[int]) -> list[int]:
    """Each cut moved between its neighbours to where both sides stray least from their medians."""
    edges = [0, *cuts, len(values)]
    for at in range(1, len(edges) - 1):
        start, end = edges[at - 1], edges[at + 1]
        places = range(start + MIN_LEVEL, end - MIN_LEVEL + 1)
        edges[at] = min(places, key=lambda cut: _stray(values[start:cut]) + _stray(values[cut:end]))
    return edges[1:-1]


def _stray(values: Floats) -> float:
    return float(np.abs(values - np.median(values)).sum())


def _midranks(values: Floats) -> Floats:
    """Ranks about their mean; equal values share theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2)[place]
    ranks -= ranks.mean()
    return ranks


def _lengths(num: int) -> range:
    return range(MIN_LEVEL, num - MIN_LEVEL + 1)


def _running_sums(ranks: Floats) -> Floats:
    """[num_series, num_runs] -> [num_series, num_runs + 1], from 0."""
    sums: Floats = np.cumsum(np.pad(ranks, ((0, 0), (1, 0))), axis=1)
    return sums


def _gains(sums: Floats, length: int) -> Floats:
    """The squared error that a level of its own saves, for every stretch of that length.

    `sums` are running ones of ranks about 0; gives [num_series, num_runs - length + 1].
    """
    num = sums.shape[1] - 1
    weights = np.full(num - length + 1, _INNER)
    weights[1:MIN_LEVEL] = weights[-MIN_LEVEL:-1] = 0.0  # what is left beside is no level
    weights[0] = weights[-1] = 1.0
    gains: Floats = (sums[:, length:] - sums[:, :-length]) ** 2
    gains *= weights * (num / (length * (num - length)))
    return gains


@lru_cache(maxsize=256)
def _shuffled_gains(ranks: tuple[float, ...]) -> Floats:
    """The largest gain of each of many series of these ranks in random order."""
    rng = np.random.default_rng(_SEED)
    series = rng.permuted(np.tile(np.asarray(ranks), (_NUM_SHUFFLED, 1)), axis=1)
    sums, most = _running_sums(series), np.zeros(_NUM_SHUFFLED)
    for length in _lengths(len(ranks)):
        np.maximum(most, _gains(sums, length).max(axis=1), out=most)
    return most
