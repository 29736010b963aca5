"""Report: the tables and lines of a load test, for the console and Markdown alike."""

from __future__ import annotations

from collections.abc import Sequence

from dstune.measure.anomalies import HANDLED_TARGET
from dstune.measure.record import (
    VOIDING,
    Accounting,
    AnomalyKind,
    Claim,
    Remark,
    SloCheck,
    TrialRecord,
)
from dstune.report import words
from dstune.report.tables import Table
from dstune.stats.anomalies import handled
from dstune.stats.claims import claim, num_needed

PERCENTS = ("p50", "p90", "p99")
LATENCIES = {
    "ttft": "TTFT",
    "service_ttft": "TTFT from the send",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2e": "E2E",
}
RATES = {
    "output_tokens_per_s": ("output tokens/s", "of normal requests, between ramp and drain"),
    "requests_per_s": ("requests/s", "ended ok, over the time until the last answer"),
    "goodput_per_s": ("goodput, requests/s", "met every SLO, over the time of the offered load"),
}
SERVER_LATENCIES = {
    "service_ttft": "TTFT from the send",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2e": "E2E",
    "queue": "in its queue",
    "prefill": "prefill",
    "decode": "decode",
}


def latency_table(trial: TrialRecord) -> Table:
    """Percentiles with their intervals; ITL has none, for its gaps hang together."""
    rows = tuple(
        (label, *(words.with_interval(trial.figures.get(f"{name}_{one}_ms")) for one in PERCENTS))
        for name, label in LATENCIES.items()
    )
    return Table(("latency, ms", *PERCENTS), rows)


def rate_table(trial: TrialRecord) -> Table:
    """Rates, and the share of requests that ended ok; each with what it counts."""
    rows = [(label, words.with_interval(trial.figures.get(name)), counts)
            for name, (label, counts) in RATES.items()]  # fmt: skip
    share = words.share(trial.figures.get("success_rate"))
    rows.append(("success rate", share, "of normal requests that were answered in some way"))
    return Table(("rate", "value", "what it counts"), tuple(rows))


def slo_table(checks: Sequence[SloCheck]) -> Table:
    """Each promise: its limit, what was measured, how many were over, what may be claimed."""
    head = ("promise", "limit", "measured", "over the limit", "as measured", "claim at 95%")
    return Table(head, tuple(map(_slo_row, checks)))


def _slo_row(check: SloCheck) -> tuple[str, ...]:
    is_share = check.key == "success_rate"
    limit = f">= {words.percent(check.limit)}" if is_share else f"<= {check.limit:g} ms"
    measured = words.percent(check.measured) if is_share else _ms(check.measured)
    needed = (
        f" ({check.num_needed:,} needed)"
        if check.claim is Claim.INCONCLUSIVE and check.num_needed
        else ""
    )
    return (
        check.key,
        limit,
        measured,
        f"{check.num_over:,} of {check.num_samples:,}",
        "met" if check.is_met else "missed",
        f"{check.claim}{needed}",
    )


def _ms(value: float | None) -> str:
    return words.ABSENT if value is None else f"{words.precise(value)} ms"


def hostile_table(kinds: Sequence[AnomalyKind]) -> Table:
    """Each kind of hostile request, how it ended, and whether others suffered."""
    head = ("hostile request", "ended", "as expected", "how", "normal beside", "their SLO",
            "handled")  # fmt: skip
    rows = tuple(
        (
            one.kind,
            f"{one.num:,}",
            f"{one.num_as_expected:,}",
            words.counts(one.outcomes),
            f"{one.num_beside:,}",
            _beside(one),
            f"{one.num_handled:,}",
        )
        for one in kinds
    )
    return Table(head, rows)


def _beside(kind: AnomalyKind) -> str:
    if not kind.num_beside:
        return "none beside"
    return "kept" if kind.is_slo_met_beside else "broken"


def hostile_lines(kinds: Sequence[AnomalyKind], slo: Sequence[SloCheck] = ()) -> list[str]:
    """The handled share against its target, and what it means under this SLO and these numbers."""
    share = handled(kinds)
    if share.value is None:
        return ["hostile requests: none ended, so nothing is known of how they are handled"]
    num = sum(one.num for one in kinds)
    lost = num - sum(one.num_handled for one in kinds)
    allowed = 1 - HANDLED_TARGET
    answer = "met" if share.value >= HANDLED_TARGET else "missed"
    said = claim(num, lost, allowed)
    needed = num_needed(lost, allowed)
    hint = f" ({needed:,} needed)" if said is Claim.INCONCLUSIVE and needed else ""
    lines = [
        f"hostile requests handled: {num - lost:,} of {num:,}, {words.share(share)}; "
        f"{words.percent(HANDLED_TARGET)} wanted: {answer}, claim {said}{hint}"
    ]
    if any(not one.is_met for one in slo) and any(not one.is_slo_met_beside for one in kinds):
        lines.append(
            "the load as a whole missed its SLO, so that it is broken beside hostile requests need "
            "not be their doing"
        )
    return lines


def accounting_lines(accounting: Accounting) -> list[str]:
    """Where every request went, as a sum, and why normal ones did not end ok."""
    terms = " + ".join(f"{num:,} {status}" for status, num in accounting.by_status.items())
    hostile = f" ({accounting.num_hostile:,} hostile)" if accounting.num_hostile else ""
    return [
        f"requests: {accounting.num_planned:,} planned{hostile} = {terms or '0'}",
        f"errors among normal requests: {words.counts(accounting.by_error)}",
    ]


def server_table(trial: TrialRecord) -> Table | None:
    """The server's own histograms beside the client's figures; None where it told nothing."""
    if not trial.server_latencies:
        return None
    head = ["latency, ms"]
    for one in PERCENTS:
        head += [f"{one} here", f"{one} by the server"]
    rows = []
    for name, label in SERVER_LATENCIES.items():
        told = trial.server_latencies.get(name)
        if told is None:
            continue
        row = [label]
        for one in PERCENTS:
            figure = trial.figures.get(f"{name}_{one}_ms")
            row += [words.number(figure.value if figure else None),
                    words.bucket(told.buckets_ms.get(one))]  # fmt: skip
        rows.append((*row, words.number(told.mean_ms), f"{told.num:,}"))
    return Table((*head, "its mean", "its count"), tuple(rows))


def agreement_line(trial: TrialRecord) -> str:
    """Where the client's percentiles lie against the server's buckets; empty without any.

    The client counts the way and the server's own front as well, so a little above is no fault.
    """
    found = []
    for name in ("service_ttft", "itl", "e2e"):
        told = trial.server_latencies.get(name)
        if told is None:
            continue
        places = []
        for one in PERCENTS:
            figure, bucket = trial.figures.get(f"{name}_{one}_ms"), told.buckets_ms.get(one)
            if figure is not None and figure.value is not None and bucket is not None:
                places.append(f"{one} {_place(figure.value, *bucket)}")
        found.append(f"{SERVER_LATENCIES[name]} {', '.join(places)}")
    return f"here against the server's buckets: {'; '.join(found)}" if found else ""


def _place(value: float, low: float, high: float | None) -> str:
    if value < low:
        return f"{words.number(low - value)} ms below"
    if high is not None and value > high:
        return f"{words.number(value - high)} ms above"
    return "within"


def server_line(trial: TrialRecord) -> str:
    """What its counters rose by, and what else they hold; empty where it has none."""
    rises = {name: round(value) for name, value in trial.server_counts.items()}
    too = "; its figures hold the hostile requests, too" if trial.anomalies else ""
    return f"the server's counters rose by {words.counts(rises)}{too}" if rises else ""


def trust_line(trial: TrialRecord) -> str:
    """Whether the figures are about the target, in one line."""
    if trial.is_trusted:
        return "trust: trusted"
    voiding = ", ".join(one.code for one in trial.remarks if one.code in VOIDING)
    return f"trust: NOT TRUSTED, by {voiding}"


def remark_line(remark: Remark) -> str:
    """A remark as people read it."""
    return f"{remark.code}: {remark.message}"
