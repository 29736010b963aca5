"""Measure: the raw trace of the engine's operations: one row per operation and step.

Nanoseconds and bytes, nothing derived; `_ns` are readings of the same monotonic clock as the
samples'. What a step's operations do not explain is its rest (Python and torch's own), what lies
between steps is `between_ns` by what the engine did there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

PAIR = "pair"  # of a trace's facts: equal where the loads of two traces took turns


class OpClass(StrEnum):
    """What an operation is for."""

    ATTENTION = "attention"  # the attention kernels
    PROJECTION = "projection"  # linear layers around attention
    FFN = "ffn"  # linear layers and activation of the feed-forward part, mixture of experts, gating
    NORM_ROPE = "norm and rope"
    KV_WRITE = "kv write"  # with the rotation that is fused into it
    HEAD = "head"  # embedding and output projection
    SAMPLING = "sampling"
    SCHEDULING = "scheduling"
    HTTP = "http"  # taking requests in and handing tokens out
    IDLE = "idle"  # nothing to compute
    LAUNCH_GAP = "launch gap"  # GPU: idle between the kernels of a step
    OTHER = "other"  # Python and torch's own within a step


class StepPhase(StrEnum):
    """What a step computes."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


@dataclass(frozen=True)
class TraceStep:
    """One step: a row of `trace_steps.parquet`. `wait_ns` and `http_ns` come before it."""

    load: int  # which load of the trace, from 0
    step: int  # within the load, from 0
    phase: StepPhase
    start_ns: int
    duration_ns: int
    num_prefill_tokens: int
    num_decode_tokens: int
    num_context_tokens: int  # keys that attention reads, over all sequences
    wait_ns: int  # nothing to do, since the step before
    http_ns: int  # requests taken in and tokens handed out, since the step before


@dataclass(frozen=True)
class OperationRow:
    """All calls of one operation in one step: a row of `operations.parquet`."""

    load: int
    step: int
    operation: str  # a field of Kernels, with the layer's role where it has one: linear.o_proj
    op_class: OpClass
    num_calls: int
    time_ns: int
    num_bytes: int  # the least that has to be moved; 0 where it is not known
    num_flops: int  # likewise; a multiply-add counts as two


@dataclass(frozen=True)
class Span:
    """One call, for a timeline."""

    name: str
    op_class: OpClass
    start_ns: int
    duration_ns: int


@dataclass(frozen=True)
class Ceilings:
    """What the device reached when the trace was taken."""

    copy_bytes_per_s: float
    flops_per_s: float  # of the precision in use


@dataclass(frozen=True)
class Trace:
    """A whole trace, as it lies in a run folder."""

    steps: tuple[TraceStep, ...]
    operations: tuple[OperationRow, ...]
    spans: tuple[Span, ...] = ()  # of the first steps alone
    ceilings: Ceilings | None = None
    device: str = ""
    front_cpu_s: float | None = None  # CPU time of the HTTP front meanwhile
    facts: dict[str, object] = field(default_factory=dict)  # model, precision, backend, knobs
