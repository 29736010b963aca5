"""Report: the tables and lines of a gate, for the console, Markdown and JUnit alike."""

from __future__ import annotations

import re

from dstune.measure.comparison import GateResult, MetricChange, QualityChange, Session
from dstune.measure.record import Claim, Estimate
from dstune.report import words
from dstune.report.tables import LABELS, Table
from dstune.stats.paired import as_rate

VERDICTS = {Claim.PASS: "pass", Claim.FAIL: "FAIL", Claim.INCONCLUSIVE: "inconclusive"}
ADVISORY = (
    "advisory: the baseline was not measured again beside the candidate, so the machine's own "
    "drift is in it, and a slowdown of 10% is often missed"
)

_LATENCY = re.compile(r"(ttft|tpot|itl|e2e)_(p[\d.]+|mean)_ms")


def change(estimate: Estimate, worse: str = "slower", better: str = "faster",
           digits: int = 1) -> str:  # fmt: skip
    """`5.2% slower [2.1% to 8.4% slower]`: a word, not a sign, says which way is worse.

    A bound that is not known leaves the interval open towards it.
    """
    if estimate.value is None:
        return words.ABSENT

    def one(value: float, with_word: bool = True) -> str:
        size = f"{abs(value):.{digits}%}"
        if not with_word or float(size.rstrip("%")) == 0:
            return size
        return f"{size} {worse if value > 0 else better}"

    text = one(estimate.value)
    text = "no change" if text == one(0.0) else text
    low, high = estimate.low, estimate.high
    if low is None and high is None:
        return text
    if low is None or high is None:
        return f"{text} [{f'up to {one(high)}' if high is not None else f'from {one(low or 0.0)}'}]"
    return f"{text} [{one(low, with_word=low * high <= 0)} to {one(high)}]"


def metric_change(one: MetricChange) -> str:
    """A metric's change in words; of a rate as the change of the rate itself, `4.8% less`."""
    if not one.metric.endswith("_per_s"):
        return change(one.change)
    values = (one.change.value, one.change.low, one.change.high)
    value, low, high = (None if each is None else -as_rate(each) for each in values)
    return change(Estimate(value=value, low=low, high=high), "less", "more")


def metric_table(result: GateResult) -> Table:
    """Every metric that is judged, and quality as the last row where it was compared."""
    verdict = "verdict (advisory)" if result.is_advisory else "verdict"
    rows = [_metric_row(one, result.method == "paired") for one in result.metrics]
    if result.quality is not None:
        rows.append(_quality_row(result.quality))
    head = ("metric", "baseline", "candidate", "change", verdict, "pairs needed")
    return Table(head, tuple(rows))


def label(metric: str) -> str:
    """A figure's name as people read it, with its unit: `TTFT p95, ms`."""
    match = _LATENCY.fullmatch(metric)
    return LABELS.get(metric) or (f"{match[1].upper()} {match[2]}, ms" if match else metric)


def _metric_row(one: MetricChange, is_paired: bool) -> tuple[str, ...]:
    return (
        label(one.metric),
        words.precise(one.baseline),
        words.precise(one.candidate),
        metric_change(one),
        VERDICTS[one.claim],
        _needed(one, is_paired),
    )


def _needed(one: MetricChange, is_paired: bool) -> str:
    if one.claim is not Claim.INCONCLUSIVE or not is_paired:
        return words.ABSENT
    return f"about {one.pairs_needed}" if one.pairs_needed is not None else "unknown"


def _quality_row(one: QualityChange) -> tuple[str, ...]:
    return (
        quality_label(one),
        f"{one.baseline:.4f}",
        f"{one.candidate:.4f}",
        change(one.change, "worse", "better", digits=2),
        VERDICTS[one.claim],
        words.ABSENT,
    )


def quality_label(one: QualityChange) -> str:
    """`perplexity (bf16, KV cache auto)`."""
    return f"perplexity ({one.precision}, KV cache {one.kv_cache_dtype})"


def explanation_table(result: GateResult) -> Table | None:
    """Which operations got slower, largest share first; None where no trace was compared."""
    if not result.explanation:
        return None
    bound = {True: "memory", False: "compute", None: words.ABSENT}
    rows = tuple(
        (
            one.operation,
            one.op_class,
            one.phase,
            change(one.change),
            _share(one.share),
            bound[one.is_memory_bound],
        )
        for one in result.explanation
    )
    head = ("operation", "class", "phase", "its time per step", "share of the slowdown",
            "bound by")  # fmt: skip
    return Table(head, rows)


def _share(estimate: Estimate) -> str:
    if estimate.value is None:
        return words.ABSENT
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.0%}"
    return f"{estimate.value:.0%} [{estimate.low:.0%}, {estimate.high:.0%}]"


def headline(result: GateResult) -> str:
    """The verdict in one line, which says when it is advisory alone."""
    advisory = " (advisory)" if result.is_advisory else ""
    verdict = VERDICTS[result.claim].upper()
    said = result.message.removeprefix("advisory: ").removeprefix(f"{result.claim}: ")
    return f"{verdict}{advisory}" + (f": {said}" if said != str(result.claim) else "")


def what_line(result: GateResult) -> str:
    """What is compared, and in how many pairs or with how many earlier sessions."""
    text = f"candidate {result.candidate.name} against baseline {result.baseline.name}"
    changed = _changed(result.baseline, result.candidate)
    how = f"{result.num_pairs} interleaved pairs"
    if result.num_repeated:
        how += f", {result.num_repeated} measured again"
    if result.method == "stored":
        how = f"{len(result.earlier)} earlier sessions, stored"
    return f"{text}{f' ({changed})' if changed else ''}: {how}"


def _changed(baseline: Session, candidate: Session) -> str:
    before, after = baseline.subject.knobs, candidate.subject.knobs
    if not before or not after:  # not told
        return ""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return ", ".join(
        f"{name} {words.knob_value(before.get(name))} -> {words.knob_value(after.get(name))}"
        for name in names
    )


def thresholds_line(result: GateResult) -> str:
    """What decides."""
    limits = result.thresholds
    text = (
        f"fails from {limits.min_effect:.1%} slower where that is sure, passes where "
        f"{limits.margin:.1%} slower is ruled out"
    )
    if result.quality is not None:
        text += f"; perplexity may rise by {result.quality.most:.2%}"
    return text


def note_lines(result: GateResult) -> list[str]:
    """Everything that a reader of the table has to know beside it."""
    lines = [ADVISORY] if result.is_advisory else []
    lines += [f"{label(one.metric)}: {one.note}" for one in result.metrics if one.note]
    if result.quality is None:
        lines.append(f"quality was not compared: {result.quality_note or 'no text was scored'}")
    lines += result.notes
    return lines + [f"{one.code}: {one.message}" for one in result.remarks]
