"""Stats: what the engine did under a load: its steps, its queue, its KV blocks, its prefix cache.

Means and percentiles are over steps, each equally weighted; only a share of time weighs them by
their duration. Steps follow from one another, so they claim no intervals; requests do.
"""

from __future__ import annotations

from collections.abc import Sequence

from dstune.measure.record import Estimate, Figures
from dstune.measure.sample import Sample, StepSample
from dstune.stats.intervals import percentile, percentile_estimate
from dstune.stats.metrics import is_ok

NS_PER_MS = 1e6
QUEUE_PERCENTS = (50.0, 90.0, 99.0)
STEP_PERCENTS = (50.0, 99.0)


def step_figures(steps: Sequence[StepSample], num_blocks: int | None) -> Figures:
    """Figures of the steps that computed something; empty without any.

    Without the number of KV blocks their use is unknown, and left out.
    """
    busy = [step for step in steps if step.num_running > 0]
    if not busy:
        return {}
    sizes = [float(step.num_running) for step in busy]
    durations_ms = [step.duration_ns / NS_PER_MS for step in busy]
    values = {
        "batch_size_mean": _mean(sizes),
        **{f"batch_size_p{one:g}": percentile(sizes, one) for one in STEP_PERCENTS},
        "tokens_per_step_mean": _mean([tokens(step) for step in busy]),
        **{f"step_p{one:g}_ms": percentile(durations_ms, one) for one in STEP_PERCENTS},
        "prefill_time_share": prefill_time_share(busy),
        "num_preempted": float(sum(step.num_preempted for step in busy)),
    }
    if num_blocks:
        uses = [kv_use(step, num_blocks) for step in busy]
        values |= {"kv_use_mean": _mean(uses), "kv_use_max": max(uses)}
    return {name: Estimate(value=value) for name, value in values.items()}


def tokens(step: StepSample) -> int:
    """Tokens that a step computed, of prompts and of answers."""
    return step.num_prefill_tokens + step.num_decode_tokens


def kv_use(step: StepSample, num_blocks: int) -> float:
    """KV blocks that sequences held after a step / all blocks.

    A block that only the prefix cache keeps counts as free: it is given up when one is wanted.
    """
    return 1 - step.num_free_blocks / num_blocks


def prefill_time_share(steps: Sequence[StepSample]) -> float | None:
    """Time of the steps that computed prompt tokens, alone or beside decodes / time of all."""
    whole_ns = sum(step.duration_ns for step in steps)
    prefill_ns = sum(step.duration_ns for step in steps if step.num_prefill_tokens)
    return prefill_ns / whole_ns if whole_ns else None


def queue_figures(samples: Sequence[Sample]) -> Figures:
    """Time from a request's arrival to its first step, by the server's word, where it gives it."""
    waits = [one.queue_ns / NS_PER_MS for one in samples if is_ok(one) and one.queue_ns is not None]
    if not waits:
        return {}
    return {f"queue_p{one:g}_ms": percentile_estimate(waits, one) for one in QUEUE_PERCENTS}


def prefix_figures(samples: Sequence[Sample]) -> Figures:
    """Prompt tokens that the prefix cache held / prompt tokens, of requests whose answer tells."""
    told = [one for one in samples if is_ok(one) and one.cached_tokens is not None]
    prompt_tokens = sum(one.prompt_tokens for one in told)
    if not prompt_tokens:
        return {}
    cached = sum(one.cached_tokens or 0 for one in told)
    return {"prefix_hit_share": Estimate(value=cached / prompt_tokens)}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
