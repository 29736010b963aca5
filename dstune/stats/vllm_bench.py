"""Stats: a trial under the keys and definitions of `vllm bench serve`, for tools that read it.

Differences from dstune's own: TTFT from the actual send, ITL per chunk, requests of one token
have no TPOT, failures are left out, duration includes ramp and drain (vllm/benchmarks/serve.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dstune.measure.sample import Sample
from dstune.stats.metrics import (
    Limit,
    Loop,
    goodput_per_s,
    inter_chunk_latencies_s,
    is_ok,
    service_ttft_s,
    whole,
)


def vllm_bench(
    samples: Sequence[Sample], loop: Loop, limits: Sequence[Limit], rate_per_s: float | None
) -> dict[str, Any]:
    """One repetition as the JSON that `vllm bench serve --save-result` writes.

    Hostile requests are no part of it.
    """
    samples = [one for one in samples if one.kind == "normal"]
    span = whole(samples)
    duration = span.seconds if span else 0.0
    done = [one for one in samples if is_ok(one)]
    ttfts = [service_ttft_s(one) or 0.0 for one in done]
    e2els = [_latency_s(one) for one in done]
    tpots = [
        (e2el - ttft) / (one.output_tokens - 1)
        for one, e2el, ttft in zip(done, e2els, ttfts, strict=True)
        if one.output_tokens > 1
    ]
    itls = [inter_chunk_latencies_s(one) for one in done]
    num_input = sum(one.prompt_tokens for one in done)
    num_output = sum(one.output_tokens for one in done)
    per_s = 1 / duration if duration else 0.0
    start_ns = span.start_ns if span else 0
    return {
        "backend": done[0].backend if done else "",
        "request_rate": rate_per_s if rate_per_s is not None else "inf",
        "num_prompts": len(samples),
        "duration": duration,
        "completed": len(done),
        "failed": len(samples) - len(done),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(done) * per_s,
        "request_goodput": goodput_per_s(samples, loop, limits) or 0.0,
        "output_throughput": num_output * per_s,
        "total_token_throughput": (num_input + num_output) * per_s,
        **_summary("ttft", ttfts),
        **_summary("tpot", tpots),
        **_summary("itl", [gap for gaps in itls for gap in gaps]),
        **_summary("e2el", e2els),
        "input_lens": [one.prompt_tokens for one in done],
        "output_lens": [one.output_tokens for one in done],
        "ttfts": ttfts,
        "itls": itls,
        "start_times": [((one.sent_ns or one.intended_ns) - start_ns) / 1e9 for one in done],
        "errors": [str(one.error) for one in samples if not is_ok(one)],
    }


def _latency_s(sample: Sample) -> float:
    if sample.last_token_ns is None or sample.sent_ns is None:
        return 0.0
    return (sample.last_token_ns - sample.sent_ns) / 1e9


def _summary(name: str, values_s: Sequence[float]) -> dict[str, float]:
    values_ms = 1e3 * np.asarray(values_s if len(values_s) else [0.0])
    return {
        f"mean_{name}_ms": float(np.mean(values_ms)),
        f"median_{name}_ms": float(np.median(values_ms)),
        f"std_{name}_ms": float(np.std(values_ms)),
        f"p99_{name}_ms": float(np.percentile(values_ms, 99)),
    }
