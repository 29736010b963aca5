"""Stats: the steps of two traces matched by what they compute, and what remains without a block.

A cell is what is compared with its like: the same step of the same sequence, else steps of the
same composition, else all steps of a phase. A phase's mean is that of its cells, each with the
same weight on both sides.

Where loads repeat the same steps, a cell's figure is the median over loads: another process that
takes the core for ten milliseconds lands in whatever operation runs, and would make a mean of
short operations say more of the machine than of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dstune.errors import NotComparable
from dstune.measure.operation_trace import StepPhase, Trace
from dstune.stats.jackknife import MIN_LOADS, Array, Mask, batches
from dstune.stats.step_table import PHASES, Column, StepTable, columns_of, step_table

Level = Literal["steps", "compositions", "phases"]
Unit = Literal["loads", "batches"]
Phases = tuple[StepPhase, ...]
Sums = tuple[Array, Array]
"""Means per step of both sides, each # [phases, columns]."""

LEAST_MATCHED = 0.5  # of the steps' time on both sides, for compositions to stand for the whole


@dataclass(frozen=True)
class Matched:
    """Two traces by phase: means per step, and for the intervals the means without each block."""

    columns: tuple[Column, ...]
    phases: Phases
    weights: Array  # [phases]: steps of a load of the first trace
    level: Level
    unit: Unit
    num_steps: tuple[int, int]
    times: Sums
    calls: Sums
    num_bytes: Sums
    num_flops: Sums
    replicates: tuple[tuple[Sums, ...], ...]  # by stratum; empty where nothing repeats
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Cells:
    """Which cell each step belongs to, -1 for none; a cell's phase and weight."""

    of_step: tuple[NDArray[np.intp], NDArray[np.intp]]
    phases: NDArray[np.intp]  # index into PHASES
    weights: Array


def match_steps(a: Trace, b: Trace, are_paired: bool) -> Matched:
    """Matches as closely as the compositions allow; raises `NotComparable` for no common phase."""
    columns = columns_of([a, b])
    sides = step_table(a, columns), step_table(b, columns)
    level, cells, notes = _cells(sides)
    is_by_load = all(len(np.unique(one.loads)) >= MIN_LOADS for one in sides)
    if not is_by_load:
        notes.append(f"fewer than {MIN_LOADS} loads a side: intervals are over batches of steps")
    blocks = _Blocks(sides, cells, level, is_by_load, are_paired)
    phases, said = blocks.phases_with_blocks()
    notes += said
    means = _Means(sides, cells, phases, takes_medians=level == "steps" and is_by_load)
    everything = tuple(np.ones(len(one.steps), dtype=bool) for one in sides)
    times, calls, num_bytes, num_flops = (
        means.of(name, everything) for name in ("times_ns", "calls", "num_bytes", "num_flops")
    )
    num_loads = len(np.unique(sides[0].loads))
    in_cell = [np.flatnonzero(one >= 0) for one in cells.of_step]
    weights = [
        np.sum(sides[0].phases[in_cell[0]] == PHASES.index(one)) / num_loads for one in phases
    ]
    return Matched(
        columns=columns,
        phases=phases,
        weights=np.array(weights),
        level=level,
        unit="loads" if is_by_load else "batches",
        num_steps=(len(in_cell[0]), len(in_cell[1])),
        times=times,
        calls=calls,
        num_bytes=num_bytes,
        num_flops=num_flops,
        replicates=tuple(
            tuple(means.of("times_ns", masks) for masks in stratum)
            for stratum in blocks.strata(phases)
        ),
        notes=tuple(notes),
    )


def _cells(sides: tuple[StepTable, StepTable]) -> tuple[Level, _Cells, list[str]]:
    sequences = []
    for side in sides:
        made = side.compositions()
        sequences.append([[made[row] for row in rows] for rows in side.loads_of(_all(side))])
    first = sequences[0][0]
    if all(one == first for side in sequences for one in side):
        of_step = tuple(np.tile(np.arange(len(first)), len(side)) for side in sequences)
        phases = np.array([PHASES.index(one[0]) for one in first], dtype=np.intp)
        return "steps", _Cells((of_step[0], of_step[1]), phases, np.ones(len(first))), []
    return _by_composition(sides)


def _by_composition(sides: tuple[StepTable, StepTable]) -> tuple[Level, _Cells, list[str]]:
    counts = [Counter(side.compositions()) for side in sides]
    common = [one for one in counts[0] if one in counts[1]]
    number = {one: at for at, one in enumerate(common)}
    of_step = tuple(
        np.array([number.get(one, -1) for one in side.compositions()], dtype=np.intp)
        for side in sides
    )
    covered = [
        float(side.durations_ns[at >= 0].sum() / max(side.durations_ns.sum(), 1.0))
        for side, at in zip(sides, of_step, strict=True)
    ]
    if min(covered) >= LEAST_MATCHED:
        phases = np.array([PHASES.index(one[0]) for one in common], dtype=np.intp)
        weights = np.array([min(counts[0][one], counts[1][one]) for one in common], dtype=float)
        note = (
            f"steps are matched by composition: those with a like on the other side take "
            f"{covered[0]:.0%} and {covered[1]:.0%} of the steps' time, the others are left out"
        )
        return "compositions", _Cells((of_step[0], of_step[1]), phases, weights), [note]
    note = (
        "the steps of the two traces differ in composition, so means by phase are compared and a "
        "change may come from another batch as well: --closed makes steps that can be matched"
    )
    cells = _Cells((sides[0].phases, sides[1].phases), np.arange(len(PHASES)), np.ones(len(PHASES)))
    return "phases", cells, [note]


class _Means:
    """Means per step by phase, over the steps that a pair of masks keeps."""

    def __init__(
        self,
        sides: tuple[StepTable, StepTable],
        cells: _Cells,
        phases: Phases,
        *,
        takes_medians: bool,
    ) -> None:
        self._sides = sides
        self._cells = cells
        self._takes_medians = takes_medians
        wanted = [PHASES.index(one) for one in phases]
        self._in_phase = cells.phases == np.array(wanted, dtype=np.intp)[:, None]

    def of(self, name: str, masks: Sequence[Mask]) -> Sums:
        """Of the table called `name`; a cell that one side has lost counts on neither."""
        of_cells, counts = [], []
        for side, at, mask in zip(self._sides, self._cells.of_step, masks, strict=True):
            keeps = np.flatnonzero(mask & (at >= 0))
            of_cells.append(self._of_cells(getattr(side, name)[keeps], at[keeps]))
            counts.append(np.bincount(at[keeps], minlength=len(self._cells.phases)))
        is_whole = (counts[0] > 0) & (counts[1] > 0)
        weights = self._in_phase * np.where(is_whole, self._cells.weights, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            weights = weights / weights.sum(axis=1, keepdims=True)
        return weights @ of_cells[0], weights @ of_cells[1]

    def _of_cells(self, rows: Array, at: NDArray[np.intp]) -> Array:
        """# [steps, columns] -> [cells, columns]"""
        num_cells = len(self._cells.phases)
        if self._takes_medians:  # whole loads of the same steps
            found: Array = np.median(rows.reshape(-1, num_cells, rows.shape[1]), axis=0)
            return found
        total = np.zeros((num_cells, rows.shape[1]))
        np.add.at(total, at, rows)
        return total / np.maximum(np.bincount(at, minlength=num_cells), 1)[:, None]


@dataclass(frozen=True)
class _Blocks:
    """What is left out in turn: loads, or batches of cells or of steps."""

    sides: tuple[StepTable, StepTable]
    cells: _Cells
    level: Level
    is_by_load: bool
    are_paired: bool

    def phases_with_blocks(self) -> tuple[Phases, list[str]]:
        """The phases that repeat on both sides, and a note on every other one.

        Raises `NotComparable` where no phase is common to both.
        """
        found, notes = [], []
        common = [
            one for one in PHASES if all(len(self._rows(at, one)) for at in range(2))
        ]  # fmt: skip
        for phase in common:
            if self._num_blocks(phase) >= 2:
                found.append(phase)
            else:
                notes.append(f"{phase} steps are left out: too few for an interval; repeat the "
                             f"load {MIN_LOADS} times")  # fmt: skip
        only = [
            f"{phase} steps are left out: only one of the traces has them"
            for phase in PHASES
            if phase not in common and any(len(one.rows_of(phase)) for one in self.sides)
        ]
        if not common:
            raise NotComparable("the traces have no kind of step in common; trace the same load")
        # without any repetition there are no intervals, but the figures still say something
        return tuple(found or common), only + (notes if found else ["no interval: nothing repeats"])

    def strata(self, phases: Phases) -> list[list[tuple[Mask, Mask]]]:
        """For each stratum the steps that stay on both sides when a block is left out."""
        if any(self._num_blocks(one) < 2 for one in phases):
            return []
        if self.is_by_load:
            return self._by_load()
        if self.level == "phases":
            return [
                self._masks([(rows, None) if side == 0 else (None, rows) for rows in
                             batches(self._rows(side, phase))])
                for phase in phases for side in range(2)
            ]  # fmt: skip
        return [
            self._masks([
                (np.flatnonzero(np.isin(self.cells.of_step[0], one)),
                 np.flatnonzero(np.isin(self.cells.of_step[1], one)))
                for one in batches(np.flatnonzero(self.cells.phases == PHASES.index(phase)))
            ])
            for phase in phases
        ]  # fmt: skip

    def _by_load(self) -> list[list[tuple[Mask, Mask]]]:
        loads = [side.loads_of(_all(side)) for side in self.sides]
        if self.are_paired and len(loads[0]) == len(loads[1]):
            return [self._masks(list(zip(*loads, strict=True)))]
        return [
            self._masks([(one, None) for one in loads[0]]),
            self._masks([(None, one) for one in loads[1]]),
        ]

    def _masks(
        self, left_out: Sequence[tuple[NDArray[np.intp] | None, NDArray[np.intp] | None]]
    ) -> list[tuple[Mask, Mask]]:
        found = []
        for pair in left_out:
            masks = [np.ones(len(side.steps), dtype=bool) for side in self.sides]
            for mask, rows in zip(masks, pair, strict=True):
                if rows is not None:
                    mask[rows] = False
            found.append((masks[0], masks[1]))
        return found

    def _rows(self, side: int, phase: StepPhase) -> NDArray[np.intp]:
        """The matched steps of a phase on one side."""
        table, of_step = self.sides[side], self.cells.of_step[side]
        rows = table.rows_of(phase)
        return rows[of_step[rows] >= 0]

    def _num_blocks(self, phase: StepPhase) -> int:
        if self.is_by_load:
            return min(len(self.sides[at].loads_of(self._rows(at, phase))) for at in range(2))
        if self.level == "phases":
            return min(len(self._rows(at, phase)) for at in range(2))
        return int(np.sum(self.cells.phases == PHASES.index(phase)))


def _all(table: StepTable) -> NDArray[np.intp]:
    return np.arange(len(table.steps))
