"""Stats: whether a candidate is slower than earlier sessions, without measuring those again.

Nothing is paired here: whatever changed the machine from one session to the next is in the
spread, and a slowdown has to stand out of it. So the claim is advisory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special

from dstune.errors import NotComparable, UsageError
from dstune.measure.comparison import MetricChange, Session, Thresholds
from dstune.measure.record import Claim, Estimate
from dstune.stats.paired import Gated, decide, geometric_mean, mean_and_sd

ALPHA = 0.05
"""One-sided level of a failure, shared by all gated metrics (Bonferroni)."""
BETA = 0.05
"""One-sided level of a pass; not divided, for a pass needs every metric's bound."""
MIN_SESSIONS = 2
"""Earlier sessions from which there is a spread to see."""
_MOST_SESSIONS = 100
_FEW = f"no spread from one earlier session: {MIN_SESSIONS} are needed, 5 or more to see much"
_NEVER = "more sessions would not decide it at their spread: measure pairs"


def judge_stored(
    earlier: Sequence[Session],
    candidate: Session,
    metrics: Sequence[Gated],
    thresholds: Thresholds,
) -> tuple[MetricChange, ...]:
    """What a session says beside earlier ones about each metric, one value a session.

    FAIL where the candidate lies beyond the one-sided prediction interval of one more session,
    mean + t_{n-1} s sqrt(1 + 1/n) (Geisser, Predictive Inference, 2.1.2), and by at least the
    smallest effect; PASS where the interval excludes a slowdown of the margin. It holds for a
    candidate of as many runs as the sessions have. `metrics` are judged as given: ask
    `gated_for` first. Raises UsageError without earlier sessions.
    """
    if not earlier:
        raise UsageError("no earlier session to compare with: name at least one with --baseline")
    for session in (*earlier, candidate):
        if not session.runs:
            raise NotComparable(f"session {session.name} has no runs; measure it again")
    return tuple(
        _judge_metric(metric, earlier, candidate, len(metrics), thresholds) for metric in metrics
    )


@dataclass(frozen=True)
class _Spread:
    """What a verdict on one metric rests on, in ln."""

    change: float  # of the candidate from the earlier mean, above 0 worse
    sd: float  # over earlier sessions
    num_metrics: int

    def bound(self, level: float, num_sessions: int) -> float:
        """How far one more session strays at most, at a one-sided level."""
        quantile = float(special.stdtrit(num_sessions - 1, 1 - level))
        return quantile * self.sd * math.sqrt(1 + 1 / num_sessions)

    def estimate(self, num_sessions: int) -> Estimate:
        """The change with the bounds that decide."""
        return Estimate(
            value=math.expm1(self.change),
            low=math.expm1(self.change - self.bound(ALPHA / self.num_metrics, num_sessions)),
            high=math.expm1(self.change + self.bound(BETA, num_sessions)),
        )

    def note(self, num_sessions: int, thresholds: Thresholds) -> str:
        """How many sessions of this spread would decide, were the change to stay."""
        for num in range(num_sessions + 1, _MOST_SESSIONS + 1):
            if decide(self.estimate(num), thresholds) is not Claim.INCONCLUSIVE:
                return f"about {num} earlier sessions would decide it"
        return _NEVER


def _judge_metric(
    metric: Gated,
    earlier: Sequence[Session],
    candidate: Session,
    num_metrics: int,
    thresholds: Thresholds,
) -> MetricChange:
    logs = [math.log(geometric_mean(session.runs, metric)) for session in earlier]
    mean, sd = mean_and_sd(logs)
    now = geometric_mean(candidate.runs, metric)
    change = (math.log(now) - mean) * (-1.0 if metric.is_higher_better else 1.0)
    num, notes = len(earlier), [metric.note] if metric.note else []
    estimate, claim = Estimate(value=math.expm1(change)), Claim.INCONCLUSIVE
    if num < MIN_SESSIONS:
        notes.append(_FEW)
    else:
        spread = _Spread(change, sd, num_metrics)
        estimate = spread.estimate(num)
        claim = decide(estimate, thresholds)
        if claim is Claim.INCONCLUSIVE:
            notes.append(spread.note(num, thresholds))
    return MetricChange(
        metric=metric.name,
        baseline=math.exp(mean),
        candidate=now,
        change=estimate,
        sd=sd if num >= MIN_SESSIONS else None,
        claim=claim,
        note="; ".join(notes),
    )
