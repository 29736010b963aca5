"""Traces of operations by hand and by simulation, for tests. Times in microseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dstune.measure.operation_trace import (
    Ceilings,
    OpClass,
    OperationRow,
    Span,
    StepPhase,
    Trace,
    TraceStep,
)

FACTS: dict[str, object] = {
    "model": "tiny", "model_digest": "abc", "precision": "bf16", "kv_cache_dtype": "bf16",
    "workload": {"seed": 1}, "load": "closed", "driver": "offline",
    "machine": {"cpu": "x"}, "knobs": {"block_size": 16},
}  # fmt: skip
CEILINGS = Ceilings(copy_bytes_per_s=1e9, flops_per_s=1e9)
CLASSES = {
    "latent_attention": OpClass.ATTENTION,
    "paged_attention": OpClass.ATTENTION,
    "linear.o_proj": OpClass.PROJECTION,
    "linear.gate_up": OpClass.FFN,
    "experts": OpClass.FFN,
    "schedule": OpClass.SCHEDULING,
    "launch_gap": OpClass.LAUNCH_GAP,
}


@dataclass(frozen=True)
class Made:
    """One step: its operations' times, then what the step and the time before it took."""

    times: Mapping[str, float]
    rest: float = 0.0
    phase: StepPhase = StepPhase.DECODE
    tokens: tuple[int, int, int] = (0, 8, 100)  # prefill, decode, context
    wait: float = 0.0
    http: float = 0.0
    calls: Mapping[str, int] = field(default_factory=dict)  # 1 unless told
    num_bytes: Mapping[str, int] = field(default_factory=dict)  # 0 unless told
    num_flops: Mapping[str, int] = field(default_factory=dict)


def trace(
    loads: Sequence[Sequence[Made]],
    *,
    facts: Mapping[str, object] = FACTS,
    ceilings: Ceilings | None = CEILINGS,
    spans: Sequence[Span] = (),
    device: str = "cpu",
) -> Trace:
    """Steps one after the other; each starts when wait and HTTP before it are over."""
    steps, rows = [], []
    now = 1_000_000
    for load, made in enumerate(loads):
        for number, one in enumerate(made):
            now += ns(one.wait) + ns(one.http)
            duration = ns(one.rest) + sum(ns(time) for time in one.times.values())
            steps.append(
                TraceStep(load, number, one.phase, now, duration, *one.tokens, ns(one.wait),
                          ns(one.http))
            )  # fmt: skip
            rows += [
                OperationRow(load, number, name, CLASSES[name], one.calls.get(name, 1), ns(time),
                             one.num_bytes.get(name, 0), one.num_flops.get(name, 0))
                for name, time in one.times.items()
            ]  # fmt: skip
            now += duration
    return Trace(tuple(steps), tuple(rows), tuple(spans), ceilings, device, None, dict(facts))


def ns(micros: float) -> int:
    return round(micros * 1000)


BASE = {"latent_attention": 40.0, "linear.o_proj": 25.0, "linear.gate_up": 20.0}
BYTES = {"latent_attention": 10_000, "linear.o_proj": 20_000, "linear.gate_up": 1_000}
FLOPS = {"latent_attention": 90_000, "linear.o_proj": 10_000, "linear.gate_up": 9_000}
# at 1 GB/s and 1 GFLOP/s: o_proj alone is bound by memory


def simulated(
    rng: np.random.Generator,
    *,
    num_loads: int = 5,
    num_steps: int = 60,
    slowed: Mapping[str, float] | None = None,
    load_sd: float = 0.03,
    step_sd: float = 0.1,
    correlation: float = 0.0,
    context: int = 0,
) -> Trace:
    """Loads of the same steps: four prefills, then decodes whose context grows.

    `slowed` multiplies an operation's time. Each load has a factor of its own, and so has each
    step and operation, those of steps autoregressive.
    """
    factors = slowed or {}
    loads = []
    for _ in range(num_loads):
        of_load = np.exp(rng.normal(0, load_sd))
        noise = rng.normal(0, step_sd, (num_steps, len(BASE) + 1))
        for at in range(1, num_steps):
            kept = (1 - correlation**2) ** 0.5
            noise[at] = correlation * noise[at - 1] + kept * noise[at]
        made = []
        for at in range(num_steps):
            is_prefill = at < 4
            size = 5.0 if is_prefill else 1.0 + at / num_steps
            times = {
                name: float(time * size * of_load * np.exp(noise[at, n]) * factors.get(name, 1.0))
                for n, (name, time) in enumerate(BASE.items())
            }
            made.append(
                Made(
                    times,
                    rest=float(15.0 * of_load * np.exp(noise[at, -1])),
                    phase=StepPhase.PREFILL if is_prefill else StepPhase.DECODE,
                    tokens=(64, 0, 64) if is_prefill else (0, 8, context + 100 + at),
                    num_bytes=BYTES,
                    num_flops=FLOPS,
                )
            )
        loads.append(made)
    return trace(loads)


def true_added_us(slowed: Mapping[str, float], num_steps: int = 60) -> dict[str, float]:
    """What `slowed` adds to each operation's time per step, over all steps, without noise."""
    sizes = [5.0 if at < 4 else 1.0 + at / num_steps for at in range(num_steps)]
    mean = sum(sizes) / num_steps
    return {name: BASE[name] * (factor - 1) * mean for name, factor in slowed.items()}
