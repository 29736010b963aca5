"""Report: where the time of a trace goes, and what differs between two, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from dstune.measure.progress import LoadProgress
from dstune.measure.record import Estimate, Run, Started, TrialRecord
from dstune.measure.trace_files import has_trace, read_trace
from dstune.report import words
from dstune.report.progress import ProgressBars
from dstune.report.result import Result
from dstune.report.tables import Table, as_markdown
from dstune.report.terminal import as_rich, stdout
from dstune.stats.operation_diff import OperationChange, OperationDiff
from dstune.stats.operations import OperationCost, PhaseCost, Timeline, TraceSummary, summarize

MARKED_SHARE = 0.25  # of a step: an operation that large stands out


def class_table(phase: PhaseCost) -> Table:
    """The classes of a phase's operations."""
    head = ("class", "ms per step", "share of the step")
    rows = tuple(
        (one.operation, _with_half(one.time_ms), _percent(one.share)) for one in phase.classes
    )
    return Table(head, rows, _large(phase.classes))


def operation_table(phase: PhaseCost) -> Table:
    """The operations of a phase, with what they reach against the device's limits."""
    head = ("operation", "class", "ms per step", "share", "calls", "GB/s", "GFLOP/s", "of limit",
            "bound by")  # fmt: skip
    rows = tuple(
        (
            one.operation,
            one.op_class.value,
            _with_half(one.time_ms),
            _percent(one.share),
            words.number(one.calls or None),
            words.number(_giga(one.bytes_per_s)),
            words.number(_giga(one.flops_per_s)),
            words.ABSENT if one.limit_share is None else _percent(one.limit_share),
            bound(one.is_memory_bound),
        )
        for one in phase.operations
    )
    return Table(head, rows, _large(phase.operations))


def phase_line(phase: PhaseCost) -> str:
    """The steps of a phase in one line."""
    return (
        f"{phase.phase}: {phase.num_steps:,} steps of {_with_half(phase.step_ms, ' ms')}, "
        f"{_percent(phase.steps_share)} of the time of all steps; per step "
        f"{words.number(phase.prefill_tokens)} prefill and {words.number(phase.decode_tokens)} "
        f"decode tokens over {words.number(phase.context_tokens)} of context"
    )


def timeline_line(timeline: Timeline) -> str:
    """What the whole time went into."""
    parts = [f"steps {_percent(timeline.steps_share)}", f"idle {_percent(timeline.idle_share)}",
             f"http {_percent(timeline.http_share)}",
             f"unexplained {_percent(timeline.unexplained_share)}"]  # fmt: skip
    text = (
        f"{words.number(timeline.seconds)} s of {timeline.num_loads} loads, "
        f"{timeline.num_steps:,} steps: {', '.join(parts)}"
    )
    if timeline.launch_gap_share:
        text += f"; launch gaps within steps {_percent(timeline.launch_gap_share)}"
    if timeline.front_cpu_s is not None:
        text += f"; the HTTP front took {words.number(timeline.front_cpu_s)} s of CPU"
    return text


def print_trace(
    summary: TraceSummary, headline: str, folder: Path, console: Console | None = None
) -> None:
    """Each phase by class and by operation, the timeline, and where the files lie."""
    out = console or stdout()
    for phase in summary.phases:
        _say(out, phase_line(phase), "bold")
        out.print(as_rich(class_table(phase)))
        out.print(as_rich(operation_table(phase)))
    _say(out, timeline_line(summary.timeline))
    if summary.ceilings is not None:
        _say(out, f"limits: {words.number(_giga(summary.ceilings['copy_bytes_per_s']))} GB/s, "
                  f"{words.number(_giga(summary.ceilings['flops_per_s']))} GFLOP/s, measured on "
                  f"{summary.device}; what lies in a cache may exceed the first")  # fmt: skip
    _say(out, headline, "bold")
    _say(out, f"written to {folder}; timeline.json opens in https://ui.perfetto.dev")


def print_traced(result: Result, console: Console | None = None) -> None:
    """The trace of a run folder, or why there is none."""
    if has_trace(result.folder):
        print_trace(summarize(read_trace(result.folder)), result.headline, result.folder, console)
    else:
        _say(console or stdout(), result.headline, "bold")


def trace_document(folder: Path, run: Run, summary: TraceSummary | None) -> dict[str, Any]:
    """A trace as one JSON document; `summary` is null where nothing was recorded."""
    return {
        "schema_version": 1,
        "folder": str(folder),
        "run": run.model_dump(mode="json"),
        "summary": summary.model_dump(mode="json") if summary else None,
    }


def headline(diff: OperationDiff) -> str:
    """The operation that explains the change, or that there is none beyond noise."""
    whole, first = diff.whole, diff.first
    change = f"steps take {_change(whole.change)} time"
    if whole.added_ms.low is None:
        return f"{change}; without repetition nothing can be said about noise"
    if not whole.is_beyond_noise:
        return f"no change beyond noise: {change}"
    if first is None:
        return f"{change}; no operation explains it beyond noise"
    kind = "slowdown" if whole.is_slower else "speedup"
    return f"{change}; {first.operation} explains {_share(first.share)} of the {kind}"


def step_change_table(diff: OperationDiff) -> Table:
    """Whole steps, by phase."""
    head = ("step", "before, ms", "after, ms", "change", "share")
    rows = tuple(
        (one.phase, words.precise(one.before_ms), words.precise(one.after_ms),
         _change(one.change), _share(one.share))
        for one in diff.steps
    )  # fmt: skip
    return Table(head, rows)


def change_table(changes: Sequence[OperationChange], name: str) -> Table:
    """Operations or classes before and after; what explains the change is marked."""
    head = (name, "phase", "bound by", "before, ms", "after, ms", "change", "share", "calls",
            "MB")  # fmt: skip
    rows = tuple(
        (
            one.operation,
            one.phase,
            bound(one.is_memory_bound),
            words.precise(one.before_ms),
            words.precise(one.after_ms),
            _change(one.change) if one.is_beyond_noise else f"({_change(one.change)})",
            _share(one.share),
            _both(one.calls_before, one.calls_after),
            _both(one.bytes_before / 1e6, one.bytes_after / 1e6),
        )
        for one in changes
    )
    return Table(head, rows, tuple(at for at, one in enumerate(changes) if one.explains))


def basis_line(diff: OperationDiff) -> str:
    """What was compared, and what the intervals are over."""
    matched = {
        "steps": "each with the same step of the other trace",
        "compositions": "by composition",
        "phases": "by phase only",
    }
    unit = "loads" if diff.unit == "loads" else "batches of steps"
    if (diff.matched, diff.unit) == ("steps", "loads"):
        unit += ", times are each step's median over them"
    a, b = diff.num_steps
    moments = "loads of both took turns" if diff.are_paired else (
        "the traces were taken one after the other, so what else the machine did is in the change"
    )  # fmt: skip
    return (
        f"{a:,} and {b:,} steps, matched {matched[diff.matched]}; intervals are over {unit}; "
        f"a share is one of the whole change, and a change in brackets is within noise; {moments}"
    )


def print_diff(diff: OperationDiff, console: Console | None = None) -> None:
    """The answer first, then steps, classes, operations, and by phase those that explain it."""
    out = console or stdout()
    _say(out, headline(diff), "bold")
    out.print(as_rich(step_change_table(diff)))
    out.print(as_rich(change_table(diff.classes, "class")))
    out.print(as_rich(change_table(diff.operations, "operation")))
    named = [one for one in diff.by_phase if one.explains]
    if named:
        out.print(as_rich(change_table(named, "operation by phase")))
    for line in (basis_line(diff), *diff.notes):
        _say(out, line)


def diff_markdown(diff: OperationDiff) -> str:
    """The answer, the steps and the operations, for a job summary."""
    parts = [
        f"{headline(diff)}.\n",
        as_markdown(step_change_table(diff)),
        as_markdown(change_table(diff.operations, "operation")),
        "".join(f"- {line}\n" for line in (basis_line(diff), *diff.notes)),
    ]
    return "\n".join(parts)


def diff_document(names: tuple[str, str], diff: OperationDiff) -> dict[str, Any]:
    """A comparison as one JSON document."""
    first = diff.first
    return {
        "schema_version": 1,
        "baseline": names[0],
        "candidate": names[1],
        "headline": headline(diff),
        "first": first.operation if first else None,
        **diff.model_dump(mode="json"),
    }


class TraceProgress:
    """A trace's observer: one bar over all loads, with the time that is left."""

    def __init__(self, bars: ProgressBars, console: Console | None = None) -> None:
        self._bars = bars
        self._console = console or Console(stderr=True)

    def begins(self, run: Run, folder: Path, num_finished: int) -> None:
        """Says what is going to happen."""
        _say(self._console, f"{run.profile['name']}: trace; run folder {folder}")

    def notes(self, text: str) -> None:
        """Prints a note."""
        _say(self._console, f"note: {text}")

    def starts(self, trial: Started) -> None:
        """A trace is one trial: `begins` has said all."""

    def advances(self, repetition: int, num_repetitions: int, progress: LoadProgress) -> None:
        """Moves the bar."""
        done = (repetition - 1) * progress.planned + progress.finished
        now = f"load {repetition} of {num_repetitions}"
        self._bars.report("requests", done, num_repetitions * progress.planned, now)

    def finishes(self, trial: TrialRecord) -> None:
        """The result is printed from the run folder."""


def bound(is_memory_bound: bool | None) -> str:
    """By what an operation is bound, in a word."""
    return {True: "memory", False: "compute", None: words.ABSENT}[is_memory_bound]


def _large(costs: Sequence[OperationCost]) -> tuple[int, ...]:
    return tuple(at for at, one in enumerate(costs) if one.share >= MARKED_SHARE)


def _change(estimate: Estimate) -> str:
    """`+12.0% ±3.1`, in points."""
    if estimate.value is None:
        return "new"
    text = f"{estimate.value:+.1%}"
    if estimate.high is None:
        return text
    return f"{text} ±{100 * (estimate.high - estimate.value):.1f}"


def _share(estimate: Estimate) -> str:
    """`96% ±4`, in points."""
    if estimate.value is None:
        return words.ABSENT
    text = f"{estimate.value:.0%}"
    if estimate.high is None:
        return text
    return f"{text} ±{100 * (estimate.high - estimate.value):.0f}"


def _with_half(estimate: Estimate, unit: str = "") -> str:
    """`4.53 ms ±12%`: half the interval, of the value."""
    text = words.number(estimate.value) + unit
    if estimate.value is None or estimate.high is None or estimate.value <= 0:
        return text
    half = (estimate.high - estimate.value) / estimate.value
    return f"{text} ±{half:.0%}"


def _both(before: float, after: float) -> str:
    """One number where they agree, else both."""
    texts = [words.number(one or None) for one in (before, after)]
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} -> {texts[1]}"


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _giga(value: float | None) -> float | None:
    return None if value is None else value / 1e9


def _say(out: Console, text: str, style: str = "") -> None:
    out.print(Text(text, style=style), soft_wrap=True)
