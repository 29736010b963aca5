"""Stats: a trace as arrays, so that sums over steps are quick: steps by operations.

Two columns stand beside the recorded operations. The rest of a step is its duration less its
operations, so that a step is the sum of its columns. HTTP is what came before the step and is no
part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dstune.measure.operation_trace import OpClass, StepPhase, Trace, TraceStep

Column = tuple[str, OpClass]
Composition = tuple[StepPhase, int, int, int]

REST: Column = ("rest", OpClass.OTHER)
HTTP: Column = ("http", OpClass.HTTP)
PHASES = tuple(StepPhase)


@dataclass(frozen=True)
class StepTable:
    """Steps in order of load and step; the arrays are [num_steps] or [num_steps, num_columns]."""

    steps: tuple[TraceStep, ...]
    columns: tuple[Column, ...]  # REST is the last but one, HTTP the last
    loads: NDArray[np.intp]
    phases: NDArray[np.intp]  # index into PHASES
    durations_ns: NDArray[np.float64]
    times_ns: NDArray[np.float64]
    calls: NDArray[np.float64]
    num_bytes: NDArray[np.float64]
    num_flops: NDArray[np.float64]

    def rows_of(self, phase: StepPhase) -> NDArray[np.intp]:
        """The rows of one phase."""
        return np.flatnonzero(self.phases == PHASES.index(phase))

    def loads_of(self, rows: NDArray[np.intp]) -> list[NDArray[np.intp]]:
        """Rows by load."""
        loads = self.loads[rows]
        return [rows[loads == one] for one in np.unique(loads)]

    def compositions(self) -> list[Composition]:
        """What each step computed."""
        return [composition(one) for one in self.steps]


def composition(step: TraceStep) -> Composition:
    """What a step computes: steps of one composition do the same work."""
    return (
        step.phase, step.num_prefill_tokens, step.num_decode_tokens, step.num_context_tokens
    )  # fmt: skip


def columns_of(traces: Iterable[Trace]) -> tuple[Column, ...]:
    """Every operation of the traces in the order in which they first ran, then REST and HTTP."""
    found = dict.fromkeys(
        (row.operation, row.op_class) for trace in traces for row in trace.operations
    )
    return (*(one for one in found if one not in (REST, HTTP)), REST, HTTP)


def step_table(trace: Trace, columns: Sequence[Column]) -> StepTable:
    """A trace under given columns, which hold all of its operations."""
    steps = tuple(sorted(trace.steps, key=lambda one: (one.load, one.step)))
    row_of = {(one.load, one.step): at for at, one in enumerate(steps)}
    column_of = {column: at for at, column in enumerate(columns)}
    num = len(trace.operations)
    at = np.fromiter((row_of[row.load, row.step] for row in trace.operations), np.intp, num)
    column = np.fromiter(
        (column_of[row.operation, row.op_class] for row in trace.operations), np.intp, num
    )

    def spread(values: Iterable[int]) -> NDArray[np.float64]:
        table = np.zeros((len(steps), len(columns)))
        np.add.at(table, (at, column), np.fromiter(values, np.float64, num))
        return table

    durations = np.array([one.duration_ns for one in steps], dtype=np.float64)
    times = spread(row.time_ns for row in trace.operations)
    rest, http = column_of[REST], column_of[HTTP]
    times[:, http] = 0.0
    times[:, rest] = 0.0
    times[:, rest] = durations - times.sum(axis=1)
    times[:, http] = [one.http_ns for one in steps]
    return StepTable(
        steps=steps,
        columns=tuple(columns),
        loads=np.array([one.load for one in steps], dtype=np.intp),
        phases=np.array([PHASES.index(one.phase) for one in steps], dtype=np.intp),
        durations_ns=durations,
        times_ns=times,
        calls=spread(row.num_calls for row in trace.operations),
        num_bytes=spread(row.num_bytes for row in trace.operations),
        num_flops=spread(row.num_flops for row in trace.operations),
    )
