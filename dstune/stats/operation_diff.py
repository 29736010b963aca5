"""Stats: two traces of operations beside each other: which operations the change comes from.

Steps are matched by what they compute, so that a batch of another size is no slowdown of an
operation. The time between steps that goes into HTTP counts as an operation; idle time does not.
The unit of every interval is a load, or with fewer than three loads a batch of steps.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from dstune.errors import DstuneError, NotComparable
from dstune.measure.comparison import OperationShare
from dstune.measure.operation_trace import PAIR, OpClass, Trace
from dstune.measure.record import Estimate, Record
from dstune.stats.jackknife import Array, estimate, half_widths
from dstune.stats.operations import bound_by_memory
from dstune.stats.step_match import Matched, Phases, Sums, match_steps

MUST_AGREE = ("model", "model_digest", "precision", "kv_cache_dtype", "workload", "load", "driver",
              "machine")  # fmt: skip
"""Facts that make two traces comparable; one that a trace does not tell is not held against it."""

MIN_SHARE = 0.05  # of the whole slowdown: what explains less is not named
ALL = "all"  # every phase together, per step of the first trace's mix


class OperationChange(Record):
    """An operation, a class or a whole step in both traces; figures are per step.

    `share` is the part of the whole change that this one is, and has no value where the whole
    change is within noise.
    """

    operation: str
    op_class: OpClass | None  # None: the whole step
    phase: str
    before_ms: float
    after_ms: float
    added_ms: Estimate
    change: Estimate  # relative
    share: Estimate
    calls_before: float
    calls_after: float
    bytes_before: float
    bytes_after: float
    is_memory_bound: bool | None

    @property
    def is_beyond_noise(self) -> bool:
        """Whether the 95% interval of the added time excludes none."""
        low, high = self.added_ms.low, self.added_ms.high
        return low is not None and high is not None and (low > 0 or high < 0)

    @property
    def is_slower(self) -> bool:
        """Whether it is slower, beyond noise."""
        return self.added_ms.low is not None and self.added_ms.low > 0

    @property
    def explains(self) -> bool:
        """Whether it is a part of the whole change that is worth a name."""
        return self.is_beyond_noise and (self.share.value or 0.0) >= MIN_SHARE


class OperationDiff(Record):
    """What differs between two traces, the first of which is the baseline."""

    device: str
    matched: Literal["steps", "compositions", "phases"]
    unit: Literal["loads", "batches"]
    are_paired: bool  # loads of both took turns
    num_steps: tuple[int, int]  # matched, of both
    steps: tuple[OperationChange, ...]  # whole steps with their HTTP, by phase, then all
    classes: tuple[OperationChange, ...]  # over all phases
    operations: tuple[OperationChange, ...]  # over all phases, in the order of reading
    by_phase: tuple[OperationChange, ...]  # likewise, where there is more than one phase
    notes: tuple[str, ...]

    @property
    def whole(self) -> OperationChange:
        """All operations of all phases together."""
        return self.steps[-1]

    @property
    def first(self) -> OperationChange | None:
        """The operation that explains most of the change; None where it is within noise."""
        return max(
            (one for one in self.operations if one.explains),
            key=lambda one: one.share.value or 0.0,
            default=None,
        )


def diff(a: Trace, b: Trace, *, are_paired: bool = False) -> OperationDiff:
    """Sets `b` beside the baseline `a`.

    `are_paired`: load k of both was recorded side by side, the two taking turns, so that what the
    machine did meanwhile cancels out; their facts may say so too. Raises `NotComparable` for
    traces of another model, precision, device or workload, `DstuneError` for one without steps.
    """
    if not a.steps or not b.steps:
        raise DstuneError("a trace without a step cannot be compared")
    check_comparable(a, b)
    are_paired = are_paired or (PAIR in a.facts and a.facts[PAIR] == b.facts.get(PAIR))
    matched = match_steps(a, b, are_paired)
    view = _View(matched, a)
    return OperationDiff(
        device=a.device,
        matched=matched.level,
        unit=matched.unit,
        are_paired=are_paired,
        num_steps=matched.num_steps,
        steps=tuple(view.row(phase, view.num_all - 1) for phase in view.phases),
        classes=_ordered([view.row(-1, at) for at in view.class_columns]),
        operations=_ordered([view.row(-1, at) for at in view.operation_columns]),
        by_phase=_ordered(
            [
                view.row(phase, at)
                for at in view.operation_columns
                for phase in view.phases[:-1]
                if len(view.phases) > 2
            ]
        ),
        notes=matched.notes,
    )


def shares_of(found: OperationDiff) -> tuple[OperationShare, ...]:
    """The operations that are slower beyond noise, the one that explains most first.

    One that explains less than `MIN_SHARE` of the slowdown is left out; where the slowdown as a
    whole is within noise, shares have no value.
    """
    slower = [one for one in found.operations if one.is_slower]
    if found.whole.is_slower:
        slower = [one for one in slower if one.explains]
    slower.sort(key=lambda one: -(one.added_ms.value or 0.0))
    return tuple(
        OperationShare(
            operation=one.operation,
            op_class=one.op_class.value if one.op_class else "",
            phase=_phase_of(one, found),
            change=one.change,
            share=one.share if found.whole.is_slower else Estimate(value=None),
            is_memory_bound=one.is_memory_bound,
        )
        for one in slower
    )


def _phase_of(change: OperationChange, found: OperationDiff) -> str:
    """The one phase in which an operation ran, or that it ran in several."""
    if not found.by_phase:
        return found.steps[0].phase
    phases = [
        one.phase
        for one in found.by_phase
        if one.operation == change.operation
        and one.op_class == change.op_class
        and (one.before_ms or one.after_ms)
    ]
    return phases[0] if len(phases) == 1 else ALL


def check_comparable(a: Trace, b: Trace) -> None:
    """Raises `NotComparable` in one line that names everything that differs."""
    found = []
    if a.device != b.device:
        found.append(f"device {a.device or '?'} and {b.device or '?'}")
    for key in MUST_AGREE:
        before, after = a.facts.get(key), b.facts.get(key)
        if before is not None and after is not None and before != after:
            is_short = not isinstance(before, dict) and not isinstance(after, dict)
            found.append(f"{key} {before} and {after}" if is_short else f"another {key}")
    if found:
        raise NotComparable(
            f"the traces were not taken of the same thing: {'; '.join(found)}; "
            "trace both with one profile on one machine"
        )


def _ordered(changes: list[OperationChange]) -> tuple[OperationChange, ...]:
    """What explains the change first, the memory-bound before the others, each by its part.

    Then what changed too little to be named, then what is within noise.
    """

    def key(one: OperationChange) -> tuple[bool, bool, bool, float]:
        is_first = one.explains and one.is_memory_bound is True
        return (not is_first, not one.explains, not one.is_beyond_noise,
                -abs(one.added_ms.value or 0.0))  # fmt: skip

    ran = [one for one in changes if one.before_ms or one.after_ms]
    return tuple(sorted(ran, key=key))


class _View:
    """The matched sums with classes and phases added up, their changes and intervals.

    Arrays are [phases + 1, columns + classes + 1], the last of each being all of them.
    """

    def __init__(self, matched: Matched, baseline: Trace) -> None:
        self._ceilings = baseline.ceilings
        self._columns = matched.columns
        self._classes = tuple(dict.fromkeys(kind for _, kind in self._columns))
        self._by_class = np.array(
            [[kind is one for one in self._classes] for _, kind in self._columns], dtype=float
        )
        self._phases: Phases = matched.phases
        self._weights = np.append(matched.weights, matched.weights.sum())
        self._before, self._after = (self._whole(one) for one in matched.times)
        self._calls = [self._whole(one) for one in matched.calls]
        self._bytes = [self._whole(one) for one in matched.num_bytes]
        self._flops = [self._whole(one) for one in matched.num_flops]
        self._values = self._figures(matched.times)
        self._half = half_widths(
            [[self._figures(one) for one in stratum] for stratum in matched.replicates]
        ) if matched.replicates else np.full(self._values.shape, np.nan)  # fmt: skip
        low = abs(self._values[0, -1, -1]) - self._half[0, -1, -1]
        self._is_change = bool(low > 0)  # False for NaN
        self.num_all = len(self._columns) + len(self._classes) + 1
        self.phases = list(range(len(self._phases) + 1))
        self.operation_columns = list(range(len(self._columns)))
        self.class_columns = list(range(len(self._columns), self.num_all - 1))

    def _whole(self, means: Array) -> Array:
        """# [phases, columns] -> with sums over classes, columns and phases."""
        wide = np.hstack([means, means @ self._by_class, means.sum(axis=1, keepdims=True)])
        weights = self._weights[:-1] / self._weights[-1]
        return np.vstack([wide, weights @ wide])

    def _figures(self, times: Sums) -> Array:
        """Added time, relative change and share of the whole change. # [3, phases, columns]"""
        before, after = (self._whole(one) for one in times)
        added = after - before
        with np.errstate(divide="ignore", invalid="ignore"):
            change = np.where(before > 0, added / before, np.nan)
            part = self._weights[:, None] * added / (self._weights[-1] * added[-1, -1])
        return np.stack([added, change, part])

    def row(self, phase: int, column: int) -> OperationChange:
        """One cell as a record."""
        phase = range(len(self._phases) + 1)[phase]
        names = [*self._columns, *((one.value, one) for one in self._classes), ("step", None)]
        name, op_class = names[column]
        added, change, share = (
            (float(self._values[at, phase, column]), float(self._half[at, phase, column]))
            for at in range(3)
        )
        calls, num_bytes = (
            [float(side[phase, column]) for side in one] for one in (self._calls, self._bytes)
        )
        return OperationChange(
            operation=name,
            op_class=op_class,
            phase=ALL if phase == len(self._phases) else self._phases[phase].value,
            before_ms=float(self._before[phase, column]) / 1e6,
            after_ms=float(self._after[phase, column]) / 1e6,
            added_ms=estimate(added[0] / 1e6, added[1] / 1e6),
            change=estimate(*change),
            share=estimate(*share) if self._is_change else Estimate(value=None),
            calls_before=calls[0],
            calls_after=calls[1],
            bytes_before=num_bytes[0],
            bytes_after=num_bytes[1],
            is_memory_bound=bound_by_memory(
                num_bytes[0], float(self._flops[0][phase, column]), self._ceilings
            ),
        )
