"""Stats: what a trace of operations comes to, for each phase: time, calls, bytes, FLOPs, limits.

A step is the sum of its operations and of the rest, so shares of a step add up to 1. The timeline
goes from the first step's start to the last one's end of every load; its shares add up to 1 too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dstune.errors import DstuneError
from dstune.measure.operation_trace import Ceilings, OpClass, StepPhase, Trace, TraceStep
from dstune.measure.record import Estimate, Record
from dstune.stats.jackknife import MIN_LOADS, Array, Rows, batches, estimate, half_widths
from dstune.stats.step_table import HTTP, PHASES, StepTable, columns_of, step_table


class OperationCost(Record):
    """An operation, or a class of them, in one phase; figures are means per step.

    `limit_share` is the least time that the device's ceilings allow, as a share of the time taken;
    None where bytes and FLOPs, or the ceilings, are not known.
    """

    operation: str  # of a class: its name
    op_class: OpClass
    time_ms: Estimate
    share: float  # of the step
    calls: float
    num_bytes: float
    num_flops: float
    bytes_per_s: float | None
    flops_per_s: float | None
    limit_share: float | None
    is_memory_bound: bool | None


class PhaseCost(Record):
    """The steps of one phase; classes and operations by their time, largest first."""

    phase: StepPhase
    num_steps: int
    step_ms: Estimate
    steps_share: float  # of the time of all steps
    prefill_tokens: float  # per step
    decode_tokens: float
    context_tokens: float
    classes: tuple[OperationCost, ...]
    operations: tuple[OperationCost, ...]


class Timeline(Record):
    """The whole trace; the shares add up to 1."""

    seconds: float  # of all loads
    num_loads: int
    num_steps: int
    steps_share: float
    idle_share: float
    http_share: float
    unexplained_share: float  # between steps, and neither of the two
    launch_gap_share: float  # of all that time, within steps; 0 on a CPU
    front_cpu_s: float | None  # of the HTTP front


class TraceSummary(Record):
    """What a trace comes to."""

    device: str
    ceilings: dict[str, float] | None
    facts: dict[str, object]
    timeline: Timeline
    phases: tuple[PhaseCost, ...]


def summarize(trace: Trace) -> TraceSummary:
    """Sums a trace up; raises `DstuneError` for one without steps."""
    if not trace.steps:
        raise DstuneError("the trace holds no step: nothing was computed while it was taken")
    table = step_table(trace, columns_of([trace]))
    ceilings = trace.ceilings
    found = [
        _phase(table, phase, ceilings) for phase in PHASES if len(table.rows_of(phase))
    ]  # fmt: skip
    return TraceSummary(
        device=trace.device,
        ceilings={"copy_bytes_per_s": ceilings.copy_bytes_per_s,
                  "flops_per_s": ceilings.flops_per_s} if ceilings else None,
        facts=trace.facts,
        timeline=_timeline(table, trace.front_cpu_s),
        phases=tuple(found),
    )  # fmt: skip


def bound_by_memory(num_bytes: float, num_flops: float, ceilings: Ceilings | None) -> bool | None:
    """Whether moving the bytes takes longer than the FLOPs; None where that is not known.

    The roofline model: Williams, Waterman, Patterson, CACM 52(4), 2009.
    """
    times = _least_s(num_bytes, num_flops, ceilings)
    return None if times is None else times[0] >= times[1]


def _least_s(
    num_bytes: float, num_flops: float, ceilings: Ceilings | None
) -> tuple[float, float] | None:
    if ceilings is None or (num_bytes <= 0 and num_flops <= 0):
        return None
    return num_bytes / ceilings.copy_bytes_per_s, num_flops / ceilings.flops_per_s


def _phase(table: StepTable, phase: StepPhase, ceilings: Ceilings | None) -> PhaseCost:
    rows = table.rows_of(phase)
    columns = [at for at, column in enumerate(table.columns) if column != HTTP]
    classes = list(dict.fromkeys(table.columns[at][1] for at in columns))
    by_class = np.array(
        [[table.columns[at][1] is one for one in classes] for at in columns], dtype=float
    )

    def means(values: Array, of: Rows) -> Array:
        """Per step: of every operation, every class, the whole. # [columns + classes + 1]"""
        each = values[of][:, columns].mean(axis=0)
        return np.concatenate([each, each @ by_class, [each.sum()]])

    blocks = table.loads_of(rows)
    if len(blocks) < MIN_LOADS:
        blocks = batches(rows)
    without = [means(table.times_ns, np.setdiff1d(rows, one)) for one in blocks if len(blocks) > 1]
    times, calls, num_bytes, num_flops = (
        means(one, rows) for one in (table.times_ns, table.calls, table.num_bytes, table.num_flops)
    )
    half = half_widths([without]) if without else np.full(times.shape, np.nan)
    names = [table.columns[at] for at in columns] + [(one.value, one) for one in classes]
    costs = [
        _cost(name, (float(times[at]), float(half[at]), float(times[-1])),
              (float(calls[at]), float(num_bytes[at]), float(num_flops[at])), ceilings)
        for at, name in enumerate(names)
    ]  # fmt: skip
    steps = [table.steps[row] for row in rows]
    return PhaseCost(
        phase=phase,
        num_steps=len(rows),
        step_ms=estimate(times[-1] / 1e6, half[-1] / 1e6),
        steps_share=_share(table.durations_ns[rows].sum(), table.durations_ns.sum()),
        prefill_tokens=_mean([one.num_prefill_tokens for one in steps]),
        decode_tokens=_mean([one.num_decode_tokens for one in steps]),
        context_tokens=_mean([one.num_context_tokens for one in steps]),
        classes=_by_time(costs[len(columns) :]),
        operations=_by_time(costs[: len(columns)]),
    )


def _cost(
    name: tuple[str, OpClass],
    times_ns: tuple[float, float, float],
    counts: tuple[float, float, float],
    ceilings: Ceilings | None,
) -> OperationCost:
    """`times_ns`: the operation's, half its interval, the step's; `counts`: calls, bytes, FLOPs."""
    time_ns, half_ns, step_ns = times_ns
    calls, num_bytes, num_flops = counts
    seconds = time_ns / 1e9
    least = _least_s(num_bytes, num_flops, ceilings)
    return OperationCost(
        operation=name[0],
        op_class=name[1],
        time_ms=estimate(time_ns / 1e6, half_ns / 1e6),
        share=_share(time_ns, step_ns),
        calls=calls,
        num_bytes=num_bytes,
        num_flops=num_flops,
        bytes_per_s=num_bytes / seconds if num_bytes and seconds > 0 else None,
        flops_per_s=num_flops / seconds if num_flops and seconds > 0 else None,
        limit_share=max(least) / seconds if least and seconds > 0 else None,
        is_memory_bound=bound_by_memory(num_bytes, num_flops, ceilings),
    )


def _timeline(table: StepTable, front_cpu_s: float | None) -> Timeline:
    whole = steps = idle = http = 0
    for rows in table.loads_of(np.arange(len(table.steps))):
        load = [table.steps[row] for row in rows]
        whole += _end_ns(load[-1]) - load[0].start_ns
        steps += sum(one.duration_ns for one in load)
        # what came before the first step is not of this time
        idle += sum(one.wait_ns for one in load[1:])
        http += sum(one.http_ns for one in load[1:])
    gaps = [at for at, (_, kind) in enumerate(table.columns) if kind is OpClass.LAUNCH_GAP]
    return Timeline(
        seconds=whole / 1e9,
        num_loads=len(np.unique(table.loads)),
        num_steps=len(table.steps),
        steps_share=_share(steps, whole),
        idle_share=_share(idle, whole),
        http_share=_share(http, whole),
        unexplained_share=_share(whole - steps - idle - http, whole),
        launch_gap_share=_share(float(table.times_ns[:, gaps].sum()), whole),
        front_cpu_s=front_cpu_s,
    )


def _end_ns(step: TraceStep) -> int:
    return step.start_ns + step.duration_ns


def _by_time(costs: Sequence[OperationCost]) -> tuple[OperationCost, ...]:
    """Those that ran, or took time, largest first."""
    ran = [one for one in costs if one.time_ms.value or one.calls]
    return tuple(sorted(ran, key=lambda one: -(one.time_ms.value or 0.0)))


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)
