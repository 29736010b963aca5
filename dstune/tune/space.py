"""Tune: a profile becomes the list of trials, ordered so that expensive restarts are few.

The default configuration comes first, then the presets, then the grid: knobs that reload the
weights turn outermost, then those that rebuild the KV cache, live ones innermost.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dstune.errors import KnobError, ProfileError
from dstune.knobs import (
    BY_NAME,
    DEFAULTS,
    RESTART_ORDER,
    KnobValue,
    Restart,
    complete,
    restart_between,
)
from dstune.measure.record import SCHEMA_VERSION, PlannedTrial, Skipped
from dstune.profile.model import Profile

MOST_COMBINATIONS = 100_000

Knobs = Mapping[str, KnobValue]
Origin = Literal["default", "preset", "grid"]


@dataclass(frozen=True)
class Space:
    """What is to be tried, what is illegal, and what people should know about either."""

    trials: tuple[PlannedTrial, ...]
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...]

    def as_document(self) -> dict[str, Any]:
        """The plan as plain data."""
        return {
            "schema_version": SCHEMA_VERSION,
            "trials": [one.model_dump(mode="json") for one in self.trials],
            "skipped": [one.model_dump(mode="json") for one in self.skipped],
            "notes": list(self.notes),
        }


def plan_space(profile: Profile) -> Space:
    """Every configuration that the profile asks for, each once.

    Raises `ProfileError` when none of them is legal or the grid is beyond reason.
    """
    size = math.prod(len(values) for values in profile.search.values())
    if size > MOST_COMBINATIONS:
        raise ProfileError(
            f"search spans {size:,} combinations, {MOST_COMBINATIONS:,} at most: list fewer values"
        )
    planner = _Planner(profile)
    planner.add("default", {})
    for preset in profile.presets:
        planner.add("preset", preset)
    for combination in _grid(profile, planner.last):
        planner.add("grid", combination)
    if not planner.trials:
        reason = planner.skipped[0].reason
        raise ProfileError(f"no configuration of this profile is legal: {reason}")
    trials = planner.trials
    notes = []
    most = profile.budget.trials
    if most is not None and len(trials) > most:
        notes.append(f"{most} of {len(trials)} configurations are tried (budget.trials): "
                     "the default, the presets, and grid points drawn by the seed")  # fmt: skip
        trials = draw(trials, most, profile.workload.seed)
    return Space(_number(trials), tuple(planner.skipped), tuple(notes))


@dataclass
class _Planner:
    """Collects legal configurations once each, and illegal ones with their reason."""

    profile: Profile
    trials: list[PlannedTrial] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    _seen: set[tuple[KnobValue, ...]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.default: Knobs = {**DEFAULTS, **self.profile.knobs}

    def add(self, origin: Origin, chosen: Knobs) -> None:
        wanted = {**self.default, **chosen}
        changed = {name: wanted[name] for name in BY_NAME if wanted[name] != self.default[name]}
        try:
            knobs: dict[str, KnobValue] | None = complete(wanted)
        except KnobError as error:
            knobs = None
            reason = str(error)
        key = tuple(wanted.values())
        if key in self._seen:
            return
        self._seen.add(key)
        if knobs is None:
            self.skipped.append(Skipped(changed=changed, reason=reason))
        else:
            trial = PlannedTrial(trial_id="", origin=origin, knobs=knobs, changed=changed)
            self.trials.append(trial)

    @property
    def last(self) -> Knobs:
        return self.trials[-1].knobs if self.trials else self.default


def _grid(profile: Profile, current: Knobs) -> Iterator[dict[str, KnobValue]]:
    """Combinations in an order that begins with the expensive values in force already."""
    if not profile.search:
        return
    names = sorted(profile.search, key=lambda name: -RESTART_ORDER.index(BY_NAME[name].restart))
    values = [sorted(profile.search[name], key=lambda value: value != current[name])
              if BY_NAME[name].restart is not Restart.LIVE else profile.search[name]
              for name in names]  # fmt: skip
    for combination in itertools.product(*values):
        yield dict(zip(names, combination, strict=True))


def draw(trials: Sequence[PlannedTrial], most: int, seed: int) -> list[PlannedTrial]:
    """The default, the presets and a random choice of the grid, `most` in all, in their order."""
    first = [one for one in trials if one.origin != "grid"][:most]
    grid = [one for one in trials if one.origin == "grid"]
    chosen = random.Random(seed).sample(range(len(grid)), min(most - len(first), len(grid)))
    return [*first, *(grid[at] for at in sorted(chosen))]


def _number(trials: Sequence[PlannedTrial]) -> tuple[PlannedTrial, ...]:
    numbered: list[PlannedTrial] = []
    for index, trial in enumerate(trials):
        restart: Restart | None = Restart.RELOAD
        if numbered:
            restart = restart_between(numbered[-1].knobs, trial.knobs)
        update = {"trial_id": f"t{index:03d}", "restart": restart}
        numbered.append(trial.model_copy(update=update))
    return tuple(numbered)
