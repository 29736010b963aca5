"""Report: a gate on the console: its verdict as tables, and how far it is while it measures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table as RichTable
from rich.text import Text

from dstune.measure.comparison import Calibration, GateResult, MetricChange, Thresholds
from dstune.measure.progress import LoadProgress
from dstune.measure.record import Claim, Run, Started, TrialRecord
from dstune.report import gate_tables as tables
from dstune.report import words
from dstune.report.tables import Table
from dstune.report.terminal import REFRESH_PER_S, as_rich, stdout

STYLES = {Claim.PASS: "green", Claim.FAIL: "bold red", Claim.INCONCLUSIVE: "yellow"}
SLOWDOWNS = (0.05, 0.10, 0.20)


def print_gate(result: GateResult, folder: Path | None, console: Console | None = None) -> None:
    """What was compared, the metrics, what explains a failure, and the verdict last."""
    out = console or stdout()
    _say(out, [tables.what_line(result)])
    claims = [one.claim for one in result.metrics]
    claims += [result.quality.claim] if result.quality is not None else []
    if claims:
        out.print(_coloured(tables.metric_table(result), claims))
    explained = tables.explanation_table(result)
    if explained is not None:
        out.print(as_rich(explained, "what got slower, by a trace of both"))
    _say(out, [*tables.note_lines(result), tables.thresholds_line(result)])
    style = f"bold {STYLES[result.claim]}"
    out.print(Text(tables.headline(result), style=style), soft_wrap=True)
    if folder is not None:
        _say(out, [f"written to {folder}"])


def _coloured(table: Table, claims: Sequence[Claim]) -> RichTable:
    rich = as_rich(table)
    for row, claim in zip(rich.rows, claims, strict=True):
        row.style = STYLES[claim]
    return rich


def _say(out: Console, lines: Sequence[str]) -> None:
    for line in lines:
        out.print(Text(line), soft_wrap=True)


def gate_document(result: GateResult) -> dict[str, Any]:
    """A gate's result as one JSON document, the same as gate.json."""
    return result.model_dump(mode="json")


def print_calibration(found: Calibration, path: Path, console: Console | None = None) -> None:
    """How far two runs of the same thing lie apart, what that lets a gate see, how often it erred.

    What is seen is of each metric by itself, with the usual thresholds.
    """
    from dstune.stats.paired import false_alarm_bound, power  # scipy: not needed to show a gate

    out, num = console or stdout(), len(found.metrics)
    rows = tuple(
        (
            tables.label(name),
            f"{one.pair_sd:.1%}",
            f"{one.num_pairs:,}",
            *(f"{power(one.pair_sd, slowdown, num, Thresholds()):.0%}" for slowdown in SLOWDOWNS),
        )
        for name, one in found.metrics.items()
    )
    seen = (f"{slowdown:.0%} slower is seen in" for slowdown in SLOWDOWNS)
    out.print(as_rich(Table(("metric", "pair sd", "pairs", *seen), rows)))
    bound = false_alarm_bound(found.num_false_alarms, found.num_comparisons)
    line = (
        f"{found.profile}: {found.num_false_alarms} of {found.num_comparisons} comparisons of the "
        f"same thing with itself failed: at most {bound:.0%} do, at 95% confidence"
    )
    _say(out, [line, f"written to {path}"])


class LiveGate:
    """A gate's observer: a live line on a terminal, one line per pair elsewhere; on stderr."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._live: Live | None = None
        self._number, self._most = 0, 0
        self._eta_s: float | None = None
        self._within = "starting"

    def __enter__(self) -> LiveGate:
        if self._console.is_terminal:
            self._live = Live(console=self._console, transient=True,
                              refresh_per_second=REFRESH_PER_S)  # fmt: skip
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def begins(self, run: Run, folder: Path, num_finished: int) -> None:
        """Says what is going to happen."""
        self._print(f"{run.profile['name']}: gate; run folder {folder}")

    def notes(self, text: str) -> None:
        """Prints a note."""
        if text:
            self._print(f"note: {text}")

    def pair(self, number: int, most: int, eta_s: float | None) -> None:
        """Shows the pair that begins, and how long all of them would take."""
        self._number, self._most, self._eta_s = number, most, eta_s
        self._within = "starting"
        if self._live is None:
            self._print(self._heading())
        self._show()

    def starts(self, trial: Started) -> None:
        """Shows which side is measured."""
        self._within = trial.trial_id
        self._show()

    def advances(self, repetition: int, num_repetitions: int, progress: LoadProgress) -> None:
        """Shows how many requests of the running load have ended."""
        self._within = f"{progress.finished:,} of {progress.planned:,} requests of a load"
        self._show()

    def finishes(self, trial: TrialRecord) -> None:
        """A load has ended; its figures count in pairs alone, so none is shown."""

    def looked(self, changes: tuple[MetricChange, ...]) -> None:
        """Prints what the pairs so far say."""
        said = [
            f"{tables.label(one.metric)} {tables.metric_change(one)}, {tables.VERDICTS[one.claim]}"
            for one in changes
        ]
        self._print(f"after {self._number} pairs: {'; '.join(said)}")

    def _heading(self) -> str:
        left = f", at most {words.duration(self._eta_s)} left" if self._eta_s is not None else ""
        return f"pair {self._number} of at most {self._most}{left}"

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def _show(self) -> None:
        if self._live is None or not self._most:
            return
        done = (self._number - 1) / self._most
        line = Text(f"{self._heading()}\n{self._within}")
        self._live.update(Group(line, ProgressBar(total=1.0, completed=done, width=40)))
