"""Load: hostile requests take the place of some normal ones.

The others stay as they were to the last token, so that a load with hostile requests and one
without compare on the same prompts.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dstune.load.plan import PlannedRequest
from dstune.measure.anomalies import Anomaly


def mix_in(
    requests: Sequence[PlannedRequest], share: float, rng: np.random.Generator
) -> tuple[PlannedRequest, ...]:
    """The requests with `share` of them made hostile, each kind about equally often.

    A duplicate comes as a pair that arrives one after the other and has one seed, from which
    `bodies` makes the id that both bear; their prompts differ, so that answers that are mixed up
    show.
    """
    mixed = list(requests)
    free = set(range(len(mixed)))
    firsts = [index for index, one in enumerate(mixed) if one.turn == 0]
    neighbours = list(itertools.pairwise(firsts))
    pairs = iter(rng.permutation(len(neighbours)).tolist())
    places = iter(rng.permutation(len(mixed)).tolist())
    for kind in _kinds(round(share * len(mixed)), rng):
        chosen: tuple[int, ...]
        if kind is Anomaly.DUPLICATE_ID:
            # none left: too few sessions for a pair, and the share falls short of it
            chosen = next((neighbours[at] for at in pairs if {*neighbours[at]} <= free), ())
        else:
            chosen = (next(at for at in places if at in free),)
        free.difference_update(chosen)
        for at in chosen:
            mixed[at] = replace(mixed[at], kind=kind.value, seed=mixed[chosen[0]].seed)
    return tuple(mixed)


def _kinds(count: int, rng: np.random.Generator) -> list[Anomaly]:
    """Kinds for `count` requests in a random order: rounds of all, a pair in every other round."""
    single = [one for one in Anomaly if one is not Anomaly.DUPLICATE_ID]
    found: list[Anomaly] = []
    num_round = 0
    while count > 0:
        kinds = single if num_round % 2 else [*single, Anomaly.DUPLICATE_ID]
        for index in rng.permutation(len(kinds)).tolist():
            size = 2 if kinds[index] is Anomaly.DUPLICATE_ID else 1
            if size <= count:
                found.append(kinds[index])
                count -= size
        num_round += 1
    # pairs first, while there is room for them beside each other
    return sorted(found, key=lambda kind: kind is not Anomaly.DUPLICATE_ID)
