"""Report: a run on the console: its result as tables, and a sweep's progress while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table as RichTable
from rich.text import Text

from dstune.measure.progress import LoadProgress
from dstune.measure.record import PlannedTrial, Run, Skipped, Started, TrialRecord
from dstune.report import words
from dstune.report.engine_tables import engine_by_trial
from dstune.report.result import LOADTEST, TRACE, Result
from dstune.report.tables import Table, comparison_table, plan_table, trials_table
from dstune.report.terminal import REFRESH_PER_S, as_rich, stdout


def print_table(table: Table) -> None:
    """Prints one table."""
    stdout().print(as_rich(table))


def print_result(result: Result, console: Console | None = None) -> None:
    """The trials, then what is recommended and why, or why nothing is; a load test's own form."""
    if result.run.verb == LOADTEST:
        from dstune.report.loadtest import print_loadtest  # scipy: `dstune knobs` starts without

        return print_loadtest(result, console)
    if result.run.verb == TRACE:
        from dstune.report.operations import print_traced

        return print_traced(result, console)
    if result.gate is not None:
        from dstune.report.gate import print_gate

        return print_gate(result.gate, result.folder, console)
    out = console or stdout()
    if result.trials:
        out.print(as_rich(trials_table(result)))
    engine = engine_by_trial(result.search)
    if engine is not None:
        out.print(as_rich(engine))
    for one in result.run.skipped:
        out.print(Text(_skipped_line(one)))
    if result.run.not_tried:
        out.print(Text(f"not tried for want of time: {', '.join(result.run.not_tried)}"))
    _print_recommendation(result, out)
    out.print(Text(result.headline), soft_wrap=True)
    out.print(Text(f"written to {result.recommended_path or result.folder}"), soft_wrap=True)


def _print_recommendation(result: Result, out: Console) -> None:
    chosen, comparison = result.recommendation, comparison_table(result)
    if chosen is None or comparison is None:
        return
    knobs = "\n".join(f"  {name}: {words.knob_with_unit(name, value)}"
                      for name, value in chosen.changed.items())  # fmt: skip
    promises = "\n".join(words.promise(check) for check in chosen.recommended.slo)
    body: list[Text | RichTable] = [
        Text(f"for {chosen.load}"),
        Text(knobs or "  the default configuration is the best of those tried", style="bold"),
        as_rich(comparison),
        Text(promises),
    ]
    if chosen.runner_up is not None:
        body.append(Text(f"runner-up: {words.knobs(chosen.runner_up.measured.changed)}"))
    body += [Text(f"{one.code}: {one.message}", style="yellow") for one in chosen.remarks]
    title = f"recommended for {chosen.profile}"
    out.print(Panel(Group(*body), title=title, title_align="left", border_style="green"))


def print_plan(
    plan: Sequence[PlannedTrial], skipped: Sequence[Skipped], notes: Sequence[str]
) -> None:
    """What a sweep would do, in its order."""
    out = stdout()
    out.print(as_rich(plan_table(plan)))
    for one in skipped:
        out.print(Text(_skipped_line(one)))
    for note in notes:
        out.print(Text(f"note: {note}"))


def _skipped_line(skipped: Skipped) -> str:
    return f"skipped {words.knobs(skipped.changed)}: {skipped.reason}"


class LiveConsole:
    """A sweep's observer: a live line on a terminal, one line per trial elsewhere."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._live: Live | None = None
        self._trial: Started | None = None
        self._share = 0.0
        self._within = ""

    def __enter__(self) -> LiveConsole:
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
        done = f", {num_finished} done already" if num_finished else ""
        self._say(f"{run.profile['name']}: {len(run.plan)} trials{done}; run folder {folder}")
        for one in run.skipped:
            self._say(_skipped_line(one))

    def notes(self, text: str) -> None:
        """Prints a note."""
        self._say(f"note: {text}")

    def starts(self, trial: Started) -> None:
        """Shows the trial that begins."""
        self._trial, self._share, self._within = trial, 0.0, "starting"
        if self._live is None:
            self._say(_heading(trial))
        self._show()

    def advances(self, repetition: int, num_repetitions: int, progress: LoadProgress) -> None:
        """Moves the bar."""
        inside = progress.finished / progress.planned if progress.planned else 0.0
        self._share = (repetition - 1 + inside) / num_repetitions
        done = f"{progress.finished}/{progress.planned}"
        self._within = f"repetition {repetition} of {num_repetitions}, {done}"
        self._show()

    def finishes(self, trial: TrialRecord) -> None:
        """Prints the trial's figures in one line."""
        self._say(_result_line(trial))

    def _say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def _show(self) -> None:
        if self._live is None or self._trial is None:
            return
        share = (self._trial.number - 1 + self._share) / self._trial.total
        line = Text(f"{_heading(self._trial)}\n{self._within}")
        self._live.update(Group(line, ProgressBar(total=1.0, completed=share, width=40)))


def _heading(trial: Started) -> str:
    phase = "trial" if trial.phase == "search" else "confirmation"
    parts = [f"{phase} {trial.number} of {trial.total}: {words.knobs(trial.changed)}"]
    if trial.eta_s is not None:
        parts.append(f"{words.duration(trial.eta_s)} left")
    if trial.best is not None:
        parts.append(f"best so far {trial.best.trial_id} ({words.knobs(trial.best.changed)})")
    return "; ".join(parts)


def _result_line(trial: TrialRecord) -> str:
    if not trial.is_measured:
        return f"  {trial.trial_id} cannot run: {trial.reason}"
    figures = {
        "ttft p99": ("ttft_p99_ms", "ms"),
        "tpot p99": ("tpot_p99_ms", "ms"),
        "output": ("output_tokens_per_s", "tokens/s"),
        "goodput": ("goodput_per_s", "/s"),
    }
    shown = [f"{label} {words.number(trial.figures[name].value)} {unit}"
             for label, (name, unit) in figures.items() if name in trial.figures]  # fmt: skip
    took = f"{trial.elapsed_s:.1f} s"
    return f"  {trial.trial_id} {', '.join(shown)}; SLO {words.standing(trial)}; {took}"
