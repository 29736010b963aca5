"""Tune: the best of the search and the default, measured again on equal terms.

The best of many noisy measurements is too good on average (the winner's curse), so figures of a
recommendation come from here alone: fresh seeds, configurations interleaved round by round so
that a drift of the machine meets all of them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from dstune.measure.record import PlannedTrial, Run, TrialRecord
from dstune.profile.model import Profile
from dstune.tune.bench import Job
from dstune.tune.pace import Pace
from dstune.tune.ranking import meets, ranked

MOST_ROUNDS = 5
LEAST = (2, 2)
"""Finalists and rounds whose time the search leaves free."""
MOST_RESERVED = 0.4
"""Of a tight budget, so that there is something to confirm."""


@dataclass(frozen=True)
class Size:
    """How large a confirmation is."""

    num_finalists: int
    rounds: int


def preferred_rounds(profile: Profile) -> int:
    """Rounds when time does not matter: 3 to 5, as many as there are repetitions."""
    return min(max(profile.budget.repetitions, 3), MOST_ROUNDS)


def fitting_size(profile: Profile, pace: Pace, remaining_s: float | None) -> Size:
    """The largest confirmation that fits the time; the smallest one when none does."""
    rounds = preferred_rounds(profile)
    sizes = [Size(4, rounds), Size(3, rounds), Size(2, rounds), Size(2, 2), Size(1, 2), Size(1, 1)]
    for size in sizes:
        cost_s = pace.confirmation_s(size.num_finalists + 1, size.rounds)
        if remaining_s is None or cost_s <= remaining_s:
            return size
    return sizes[-1]


def reserve_s(pace: Pace, wall_s: float | None) -> float:
    """Seconds that the search leaves to the confirmation, of `wall_s` in all."""
    num_finalists, rounds = LEAST
    cost_s = pace.confirmation_s(num_finalists + 1, rounds)
    return cost_s if wall_s is None else min(cost_s, MOST_RESERVED * wall_s)


def choose_finalists(trials: Sequence[TrialRecord], profile: Profile, most: int) -> list[str]:
    """The best search trials that meet the SLO, at most `most`; and always the default.

    Empty when nothing meets the SLO: then there is nothing to confirm.
    """
    trusted = [one for one in trials if one.phase == "search" and one.is_trusted]
    best = [one for one in ranked(trusted, profile.aim) if meets(one)][:most]
    if not best:
        return []
    default = [one for one in trusted if one.origin == "default"]
    return [one.trial_id for one in best] + [
        one.trial_id for one in default if one not in best
    ]  # fmt: skip


def confirmation_id(trial_id: str, round_index: int) -> str:
    """The trial id of one round of a finalist: c0-t005."""
    return f"c{round_index}-{trial_id}"


def round_jobs(run: Run, profile: Profile, round_index: int) -> list[Job]:
    """One repetition of every finalist, in an order of its own, with seeds unused by the search."""
    plan: dict[str, PlannedTrial] = {one.trial_id: one for one in run.plan}
    order = list(run.finalists)
    random.Random(f"{profile.workload.seed} {round_index}").shuffle(order)
    repetition = profile.budget.repetitions + round_index
    return [
        Job(plan[trial_id], confirmation_id(trial_id, round_index), "confirm", (repetition,))
        for trial_id in order
    ]
