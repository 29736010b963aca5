"""Stats: what became of the hostile requests, and where every request of a plan went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dstune.measure.anomalies import Anomaly, is_as_expected
from dstune.measure.record import Accounting, AnomalyKind, Claim, Estimate
from dstune.measure.sample import Sample, Status
from dstune.stats.figures import check_slo
from dstune.stats.intervals import share_estimate
from dstune.stats.metrics import Limit

NORMAL = "normal"
NEVER_ENDED = (Status.INCOMPLETE, Status.UNSENT)


def summarize(
    samples: Sequence[Sample], limits: Sequence[Limit], success_rate: float
) -> tuple[AnomalyKind, ...]:
    """Each kind that was sent, in the order of `Anomaly`: how it ended, and who suffered.

    The normal requests beside a kind are those under way while any of it was; their SLO
    is broken when their number over a limit fails it at 95% confidence, since a slow request or
    two beside a rare kind is chance. Nobody beside, nobody suffered.
    Hostile requests that a stop cut short or that were never sent are not counted.
    """
    normal = [one for one in samples if one.kind == NORMAL and one.status is not Status.UNSENT]
    found = []
    for kind in Anomaly:
        ended = [one for one in samples if one.kind == kind and one.status not in NEVER_ENDED]
        if not ended:
            continue
        beside = _beside(normal, ended)
        slo = check_slo([beside], limits, success_rate) if beside else ()
        found.append(
            AnomalyKind(
                kind=kind,
                num=len(ended),
                num_as_expected=sum(map(is_as_expected, ended)),
                num_beside=len(beside),
                is_slo_met_beside=all(check.claim is not Claim.FAIL for check in slo),
                outcomes=dict(Counter(map(outcome_of, ended)).most_common()),
            )
        )
    return tuple(found)


def _beside(normal: Sequence[Sample], hostile: Sequence[Sample]) -> list[Sample]:
    """The normal requests that were under way together with any of the hostile ones."""
    merged: list[tuple[int, int]] = []
    for start_ns, end_ns in sorted(map(_span_ns, hostile)):
        if merged and start_ns <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end_ns))
        else:
            merged.append((start_ns, end_ns))
    found, at = [], 0
    for (start_ns, end_ns), one in sorted(
        ((_span_ns(one), one) for one in normal), key=lambda pair: pair[0]
    ):
        while at < len(merged) and merged[at][1] < start_ns:  # ended before this and all later ones
            at += 1
        if at < len(merged) and merged[at][0] <= end_ns:
            found.append(one)
    return found


def _span_ns(sample: Sample) -> tuple[int, int]:
    """From the send (or the try) to the end; what never ended has no end."""
    start_ns = sample.sent_ns if sample.sent_ns is not None else sample.intended_ns
    if sample.done_ns is not None:
        return start_ns, max(start_ns, sample.done_ns)
    return start_ns, 1 << 62


def outcome_of(sample: Sample) -> str:
    """How a hostile request ended: the HTTP status that refused it, else its own status."""
    is_refusal = sample.http_status is not None and sample.http_status >= 400
    return str(sample.http_status) if is_refusal else sample.status.value


def handled(kinds: Sequence[AnomalyKind]) -> Estimate:
    """The share of hostile requests that were handled, with its Clopper-Pearson interval."""
    return share_estimate(sum(one.num_handled for one in kinds), sum(one.num for one in kinds))


def account(samples: Sequence[Sample], num_planned: int) -> Accounting:
    """Where every request of a plan went; what has no sample was never sent.

    Raises `ValueError` for more samples than were planned: then something was sent twice.
    """
    if len(samples) > num_planned:
        raise ValueError(f"{len(samples)} samples of {num_planned} planned requests")
    by_status = Counter(one.status.value for one in samples)
    by_status[Status.UNSENT.value] += num_planned - len(samples)
    errors = (one.error.value for one in samples if one.kind == NORMAL and one.error)
    return Accounting(
        num_planned=num_planned,
        num_hostile=sum(one.kind != NORMAL for one in samples),
        by_status={one.value: by_status[one.value] for one in Status if by_status[one.value]},
        by_error=dict(Counter(errors).most_common()),
    )
