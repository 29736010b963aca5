"""Gate: what was measured becomes one verdict in one line."""

from __future__ import annotations

from dstune.errors import ExitCode
from dstune.gate.contest import Measured
from dstune.gate.plan import GatePlan
from dstune.measure.comparison import GateResult, MetricChange, QualityChange, Session
from dstune.measure.record import Claim
from dstune.stats.paired import as_rate, overall
from dstune.stats.quality import quality_change


def conclude(baseline: Session, candidate: Session, found: Measured, plan: GatePlan) -> GateResult:
    """The result of a paired comparison."""
    quality, quality_note = _quality(baseline, candidate, found, plan)
    claims = [overall(found.changes)] if found.changes else [Claim.INCONCLUSIVE]
    if found.end and claims[0] is Claim.PASS:
        claims = [Claim.INCONCLUSIVE]
    if quality is not None:
        claims.append(quality.claim)
    claim = worst(claims)
    return GateResult(
        method="paired",
        is_advisory=False,
        claim=claim,
        exit_code=exit_code(claim, found.was_interrupted),
        message=say(claim, found.changes, quality, found.end),
        baseline=baseline,
        candidate=candidate,
        thresholds=plan.thresholds,
        metrics=found.changes,
        quality=quality,
        quality_note=quality_note,
        num_pairs=len(found.baseline),
        num_repeated=found.num_repeated,
    )


def worst(claims: list[Claim]) -> Claim:
    """One failure fails, one doubt leaves it open."""
    for one in (Claim.FAIL, Claim.INCONCLUSIVE):
        if one in claims:
            return one
    return Claim.PASS


def exit_code(claim: Claim, was_interrupted: bool = False) -> ExitCode:
    """What the program exits with."""
    if was_interrupted:
        return ExitCode.INTERRUPTED
    codes = {Claim.PASS: ExitCode.PASS, Claim.FAIL: ExitCode.FAIL}
    return codes.get(claim, ExitCode.INCONCLUSIVE)


def say(
    claim: Claim, changes: tuple[MetricChange, ...], quality: QualityChange | None, end: str
) -> str:
    """The verdict in one line."""
    failed = [_how_much(one) for one in changes if one.claim is Claim.FAIL]
    if quality is not None and quality.claim is Claim.FAIL:
        failed.append(f"perplexity is {quality.change.value:.2%} higher")
    if failed:
        return f"fail: {'; '.join(failed)}"
    if claim is Claim.PASS:
        most = max((one.change.high or 0.0 for one in changes), default=0.0)
        return (
            f"pass: no metric is slower by {most:.1%} or more"
            if most > 0
            else "pass: no metric is slower"
        )
    open_ones = [one for one in changes if one.claim is Claim.INCONCLUSIVE]
    said = [end] if end else []
    said += [_how_open(one) for one in open_ones]
    if quality is not None and quality.claim is Claim.INCONCLUSIVE:
        said.append("the text is too short to tell whether perplexity rose")
    return f"inconclusive: {'; '.join(said)}"


def _how_much(one: MetricChange) -> str:
    assert one.change.value is not None and one.change.low is not None
    least = _words(one.metric, one.change.low)
    return f"{one.metric} is {_words(one.metric, one.change.value)} (at least {least})"


def _how_open(one: MetricChange) -> str:
    if one.change.value is None:
        return f"{one.metric} has no value"
    if one.change.low is None or one.change.high is None:
        return f"{one.metric} is {_words(one.metric, one.change.value)}, with no spread to judge by"
    low, high = _words(one.metric, one.change.low), _words(one.metric, one.change.high)
    needed = f", about {one.pairs_needed} pairs would decide" if one.pairs_needed else ""
    return f"{one.metric} is {_words(one.metric, one.change.value)} ({low} to {high}){needed}"


def _words(metric: str, change: float) -> str:
    """`5.0% slower`; of a rate `4.8% less`, since that is what its two values show."""
    if metric.endswith("_per_s"):
        change = as_rate(change)
        return f"{abs(change):.1%} {'less' if change < 0 else 'more'}"
    return f"{abs(change):.1%} {'slower' if change > 0 else 'faster'}"


def _quality(
    baseline: Session, candidate: Session, found: Measured, plan: GatePlan
) -> tuple[QualityChange | None, str]:
    if not plan.quality_windows:
        return None, "not asked for"
    if baseline.quality is None or candidate.quality is None:
        reasons = [one for one in found.quality.values() if isinstance(one, str)]
        return None, "; ".join(dict.fromkeys(reasons)) or "the gate ended before"
    most = plan.thresholds.max_perplexity_increase
    return quality_change(baseline.quality, candidate.quality, most), ""
