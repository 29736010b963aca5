"""Stats: whether a candidate is slower than its baseline, from interleaved pairs of runs.

`gate` measures pairs and asks at each look; what is judged is one number per run and metric,
never a request. A sequential one-sided t test on D = ln(candidate / baseline), signed so that
above 0 is worse: of throughput that is the time per token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from dstune.errors import NotComparable, UsageError
from dstune.measure.comparison import MetricChange, RunFigures, Thresholds
from dstune.measure.record import Claim, Estimate

LOOKS = (5, 8, 12)
"""Numbers of pairs at which a verdict may be reached."""
ALPHAS = (0.02, 0.02, 0.03)
"""One-sided level of a failure at each look, shared by all gated metrics (Bonferroni).

Their sum, 7%, bounds the false alarms of a gate. Looks overlap and passes end it, so that simulated
gates of the same against itself fail in 2% of cases at a pair sd of 5%, in 5% at 10%, and in at
most 5.8% at any (four independent metrics at 15%).
"""
BETAS = (0.03, 0.03, 0.05)
"""One-sided level of a pass at each look; not divided, for a pass needs every metric's bound."""
TAIL_REQUESTS = 1000
"""Completed requests per run from which its p99 is gated."""

CONFIDENCE = 0.95
_SEED = 20_240_607
_NUM_SIMULATED = 20_000


@dataclass(frozen=True)
class Gated:
    """A figure that is judged; `note` is what the reader of the verdict has to know of it."""

    name: str
    is_higher_better: bool = False
    note: str = ""


GATED = (
    Gated("output_tokens_per_s", is_higher_better=True),
    Gated("ttft_p50_ms"),
    Gated("ttft_p99_ms"),
    Gated("tpot_p99_ms"),
)


def choose_metrics(names: Sequence[str]) -> tuple[Gated, ...]:
    """The figures that a user asks for, each once; without any, the usual four.

    Raises UsageError where the name does not tell which way is worse.
    """
    chosen = []
    for name in dict.fromkeys(names):
        if not name.endswith(("_per_s", "_ms")):
            known = ", ".join(gated.name for gated in GATED)
            raise UsageError(
                f"metric {name!r} cannot be gated: name a rate that ends in _per_s or a time that "
                f"ends in _ms, such as {known}, requests_per_s, goodput_per_s, tpot_p50_ms, "
                "e2e_p99_ms"
            )
        chosen.append(Gated(name, is_higher_better=name.endswith("_per_s")))
    return tuple(chosen) or GATED


def gated_for(metrics: Sequence[Gated], runs: Sequence[RunFigures]) -> tuple[Gated, ...]:
    """The metrics that the runs of both sides can bear: p95 for p99 below TAIL_REQUESTS."""
    fewest = min((run.num_ok for run in runs), default=0)
    if fewest >= TAIL_REQUESTS:
        return tuple(metrics)
    note = f"p95 stands in for p99: {fewest:,} completed requests per run, {TAIL_REQUESTS:,} needed"
    found: dict[str, Gated] = {}
    for gated in metrics:
        if gated.name.endswith("_p99_ms"):
            gated = replace(gated, name=gated.name.replace("_p99_ms", "_p95_ms"), note=note)
        found[gated.name] = gated  # once, also where p95 was asked for beside p99
    return tuple(found.values())


def log_values(runs: Sequence[RunFigures], metric: Gated) -> list[float]:
    """ln of a metric per run; NotComparable where a run has no value above 0."""
    for run in runs:
        value = run.figures.get(metric.name)
        if value is None or not 0 < value < math.inf:
            has = "no value" if value is None else f"the value {value:g}"
            raise NotComparable(
                f"run {run.name} has {has} of {metric.name}; "
                "choose metrics that every run has with --metric"
            )
    return [math.log(run.figures[metric.name]) for run in runs]


def pair_differences(
    baseline: Sequence[RunFigures], candidate: Sequence[RunFigures], metrics: Sequence[Gated]
) -> dict[str, tuple[float, ...]]:
    """D of every pair by metric, above 0 where the candidate is worse."""
    found = {}
    for metric in metrics:
        before, after = log_values(baseline, metric), log_values(candidate, metric)
        sign = -1.0 if metric.is_higher_better else 1.0
        found[metric.name] = tuple(sign * (b - a) for a, b in zip(before, after, strict=True))
    return found


def judge(
    baseline: Sequence[RunFigures],
    candidate: Sequence[RunFigures],
    metrics: Sequence[Gated],
    thresholds: Thresholds,
) -> tuple[MetricChange, ...]:
    """What the pairs so far say about each metric; the i-th runs of both sides are a pair.

    `metrics` are judged as given: ask `gated_for` first. Raises ValueError where the number of
    pairs is not a look, for then the levels do not hold.
    """
    if len(baseline) != len(candidate) or len(baseline) not in LOOKS:
        raise ValueError(
            f"{len(baseline)} and {len(candidate)} runs are no look: {LOOKS} pairs are"
        )
    differences = pair_differences(baseline, candidate, metrics)
    return tuple(
        _judge_metric(
            metric,
            (geometric_mean(baseline, metric), geometric_mean(candidate, metric)),
            differences[metric.name],
            len(metrics),
            thresholds,
        )
        for metric in metrics
    )


def as_rate(change: float) -> float:
    """A slowdown as the change of a rate: 25% more time for each token is 20% fewer a second."""
    return 1 / (1 + change) - 1


def geometric_mean(runs: Sequence[RunFigures], metric: Gated) -> float:
    """A metric's typical value over runs, in its unit."""
    logs = log_values(runs, metric)
    return math.exp(math.fsum(logs) / len(logs))


def mean_and_sd(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample sd, exact where all values are the same."""
    if max(values) == min(values):  # else rounding would make a spread out of nothing
        return float(values[0]), 0.0
    return math.fsum(values) / len(values), float(np.std(values, ddof=1))


def decide(change: Estimate, thresholds: Thresholds) -> Claim:
    """The claim that a change with the bounds that decide comes to; a failure goes first."""
    assert change.value is not None and change.low is not None and change.high is not None
    if change.low > 0 and change.value >= thresholds.min_effect:
        return Claim.FAIL
    return Claim.PASS if change.high < thresholds.margin else Claim.INCONCLUSIVE


def _judge_metric(
    metric: Gated,
    typical: tuple[float, float],
    differences: Sequence[float],
    num_metrics: int,
    thresholds: Thresholds,
) -> MetricChange:
    num = len(differences)
    look = LOOKS.index(num)
    mean, sd = mean_and_sd(differences)
    error = sd / math.sqrt(num)
    below = float(special.stdtrit(num - 1, 1 - ALPHAS[look] / num_metrics)) * error
    above = float(special.stdtrit(num - 1, 1 - BETAS[look])) * error
    change = Estimate(
        value=math.expm1(mean), low=math.expm1(mean - below), high=math.expm1(mean + above)
    )
    claim = decide(change, thresholds)
    return MetricChange(
        metric=metric.name,
        baseline=typical[0],
        candidate=typical[1],
        change=change,
        sd=sd,
        claim=claim,
        pairs_needed=(
            _pairs_needed(mean, sd, num, thresholds) if claim is Claim.INCONCLUSIVE else None
        ),
        note=metric.note,
    )


def to_show(mean: float, thresholds: Thresholds) -> float:
    """The larger of what could be shown at this estimate, in ln: a slowdown, or its absence."""
    to_fail = mean if math.expm1(mean) >= thresholds.min_effect else 0.0
    return max(to_fail, math.log1p(thresholds.margin) - mean)


def _pairs_needed(mean: float, sd: float, num: int, thresholds: Thresholds) -> int | None:
    """About how many pairs show an effect at level .05 with power .8.

    6.2 = (1.645 + .842)^2, the normal quantiles of both; 1.5 for t in place of the normal.
    """
    effect = to_show(mean, thresholds)
    if effect <= 0 or sd / effect > 1e3:  # millions of pairs are no advice
        return None
    return max(num + 1, math.ceil(6.2 * (sd / effect) ** 2 + 1.5))


def overall(changes: Sequence[MetricChange]) -> Claim:
    """One metric that fails is a failure; a pass needs every metric's."""
    if not changes:
        raise ValueError("no metric was judged")
    claims = {change.claim for change in changes}
    if Claim.FAIL in claims:
        return Claim.FAIL
    return Claim.INCONCLUSIVE if Claim.INCONCLUSIVE in claims else Claim.PASS


def power(sd: float, slowdown: float, num_metrics: int, thresholds: Thresholds) -> float:
    """The probability that one metric, slower by that share, fails a gate at some look.

    `sd` is that of D over pairs. Simulated with a fixed seed, so the same always; the gate is
    taken to stop once this metric passes, which other metrics may still put off.
    """
    draws = np.random.default_rng(_SEED).standard_normal((_NUM_SIMULATED, LOOKS[-1]))
    values = math.log1p(slowdown) + sd * draws
    is_open = np.ones(_NUM_SIMULATED, dtype=bool)
    num_failed = 0
    for num, alpha, beta in zip(LOOKS, ALPHAS, BETAS, strict=True):
        mean = values[:, :num].mean(axis=1)
        error = values[:, :num].std(axis=1, ddof=1) / math.sqrt(num) if sd > 0 else 0.0
        low = mean - float(special.stdtrit(num - 1, 1 - alpha / num_metrics)) * error
        high = mean + float(special.stdtrit(num - 1, 1 - beta)) * error
        fails = is_open & (low > 0) & (np.expm1(mean) >= thresholds.min_effect)
        num_failed += int(fails.sum())
        is_open &= ~fails & (np.expm1(high) >= thresholds.margin)
    return num_failed / _NUM_SIMULATED


def false_alarm_bound(num_alarms: int, num_comparisons: int) -> float:
    """The rate of false alarms that so many A/A comparisons exclude, at 95% confidence.

    The one-sided Clopper-Pearson bound: 29 comparisons without an alarm show at most 10%.
    """
    if num_alarms >= num_comparisons:
        return 1.0
    return float(special.betaincinv(num_alarms + 1, num_comparisons - num_alarms, CONFIDENCE))
