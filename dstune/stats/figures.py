"""Stats: the figures of a trial, and how they stand against its promise.

Percentiles are of the pooled raw samples of all repetitions; rates are means over repetitions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dstune.measure.record import Claim, Estimate, Figures, SloCheck
from dstune.measure.sample import Sample, StepSample
from dstune.stats.claims import claim, num_needed
from dstune.stats.intervals import (
    mean_estimate,
    percentile,
    percentile_estimate,
    ratio_estimate,
    share_estimate,
)
from dstune.stats.metrics import (
    LATENCIES,
    Limit,
    Loop,
    counted,
    goodput_per_s,
    is_ok,
    latencies_s,
    offered,
    output_tokens_per_s,
    requests_per_s,
)
from dstune.stats.step_figures import prefix_figures, queue_figures, step_figures

PERCENTS = (50.0, 90.0, 95.0, 99.0)
COMPARED = ("output_tokens_per_s", "goodput_per_s", "requests_per_s", "ttft_p50_ms",
            "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "e2e_p50_ms", "e2e_p99_ms")  # fmt: skip
"""Figures that are compared between configurations, as ratios paired by repetition."""


def figures_of(
    repetitions: Sequence[Sequence[Sample]],
    loop: Loop,
    limits: Sequence[Limit],
    steps: Sequence[StepSample] = (),
    num_blocks: int | None = None,
) -> Figures:
    """Every figure of one configuration, from the raw samples of each repetition.

    `num_blocks` is how many KV blocks the engine has, where that is known.
    """
    kept = [counted(samples) for samples in repetitions]
    pooled = [sample for samples in kept for sample in samples]
    found: Figures = {}
    for metric in LATENCIES:
        found.update(_latency_figures(metric, pooled, limits))
    rates: dict[str, Callable[[Sequence[Sample]], float | None]] = {
        "output_tokens_per_s": lambda samples: output_tokens_per_s(samples, loop),
        "requests_per_s": requests_per_s,
        "goodput_per_s": lambda samples: goodput_per_s(samples, loop, limits),
    }
    for name, rate in rates.items():
        values = [rate(offered(samples)) for samples in repetitions]
        found[name] = mean_estimate([0.0 if value is None else value for value in values])
    found["success_rate"] = share_estimate(sum(map(is_ok, pooled)), len(pooled))
    found |= queue_figures(pooled) | prefix_figures(pooled) | step_figures(steps, num_blocks)
    return found


def _latency_figures(metric: str, samples: Sequence[Sample], limits: Sequence[Limit]) -> Figures:
    values_ms = [1e3 * value for value in latencies_s(samples, metric)]
    asked = {limit.percent for limit in limits if limit.metric == metric}
    found: Figures = {}
    for percent in sorted({*PERCENTS, *asked}):
        if metric == "itl":  # gaps of one request hang together: no interval is claimed
            estimate = Estimate(value=percentile(values_ms, percent))
        else:
            estimate = percentile_estimate(values_ms, percent)
        found[f"{metric}_p{percent:g}_ms"] = estimate
    mean = mean_estimate(values_ms)
    found[f"{metric}_mean_ms"] = mean if metric != "itl" else Estimate(value=mean.value)
    return found


def check_slo(
    repetitions: Sequence[Sequence[Sample]], limits: Sequence[Limit], success_rate: float
) -> tuple[SloCheck, ...]:
    """Each promise beside what was measured, and what may be claimed about it."""
    pooled = [sample for samples in repetitions for sample in counted(samples)]
    num_ok = sum(map(is_ok, pooled))
    checks = [_check_limit(pooled, limit, num_ok) for limit in limits]
    num_lost = len(pooled) - num_ok
    checks.append(
        SloCheck(
            key="success_rate",
            limit=success_rate,
            measured=num_ok / len(pooled) if pooled else None,
            is_met=bool(pooled) and num_ok >= success_rate * len(pooled),
            claim=claim(len(pooled), num_lost, 1 - success_rate),
            num_samples=len(pooled),
            num_over=num_lost,
            num_needed=num_needed(num_lost, 1 - success_rate),
        )
    )
    return tuple(checks)


def _check_limit(pooled: Sequence[Sample], limit: Limit, num_ok: int) -> SloCheck:
    values = latencies_s(pooled, limit.metric)
    measured = percentile(values, limit.percent)
    num_over = sum(value > limit.limit_s for value in values)
    allowed = 1 - limit.percent / 100
    if measured is None:  # nothing followed the first token: met, if there were tokens at all
        is_met, said = num_ok > 0, Claim.PASS if num_ok else Claim.INCONCLUSIVE
    else:
        is_met, said = measured <= limit.limit_s, claim(len(values), num_over, allowed)
    if limit.metric == "itl" and measured is not None:
        said = Claim.INCONCLUSIVE  # gaps are not independent, so their number claims nothing
    return SloCheck(
        key=limit.key,
        limit=1e3 * limit.limit_s,
        measured=None if measured is None else 1e3 * measured,
        is_met=is_met,
        claim=said,
        num_samples=len(values),
        num_over=num_over,
        num_needed=None if limit.metric == "itl" else num_needed(num_over, allowed),
    )


def compare(new: Sequence[Figures], old: Sequence[Figures]) -> Figures:
    """`new` as multiples of `old`, repetition by repetition in the same order."""
    found: Figures = {}
    for name in COMPARED:
        pairs = []
        for after, before in zip(new, old, strict=True):
            a, b = after.get(name), before.get(name)
            if a is not None and b is not None and a.value is not None and b.value is not None:
                pairs.append((a.value, b.value))
        if len(pairs) == len(new):
            found[name] = ratio_estimate(pairs)
    return found
