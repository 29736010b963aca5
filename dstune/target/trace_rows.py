"""The engine's recorded rows as they come over the pipe, made into a trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dstune.measure.operation_trace import (
    Ceilings,
    OpClass,
    OperationRow,
    Span,
    StepPhase,
    Trace,
    TraceStep,
)


def read_trace(event: Mapping[str, Any]) -> Trace:
    """The trace of a `trace` event (`engine/tracing/recorder.py` has its columns), as load 0."""
    names = [(name, OpClass(op_class)) for name, op_class in event["names"]]
    dropped = event["num_dropped_steps"]
    return Trace(
        steps=tuple(_step(*row) for row in event["steps"]),
        operations=tuple(
            OperationRow(0, step, *names[number], *rest)
            for step, number, *rest in event["operations"]
        ),
        spans=tuple(Span(*names[number], *times) for number, *times in event["spans"]),
        ceilings=Ceilings(**event["ceilings"]),
        device=event["device"],
        front_cpu_s=event.get("front_cpu_s"),
        facts={"num_dropped_steps": dropped} if dropped else {},
    )


def _step(
    step: int, start_ns: int, duration_ns: int, num_prefill: int, num_decode: int, *rest: int
) -> TraceStep:
    num_context, wait_ns, http_ns = rest
    phase = StepPhase.MIXED
    if not num_prefill:
        phase = StepPhase.DECODE
    elif not num_decode:
        phase = StepPhase.PREFILL
    return TraceStep(
        load=0,
        step=step,
        phase=phase,
        start_ns=start_ns,
        duration_ns=duration_ns,
        num_prefill_tokens=num_prefill,
        num_decode_tokens=num_decode,
        num_context_tokens=num_context,
        wait_ns=wait_ns,
        http_ns=http_ns,
    )
