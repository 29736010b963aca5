"""Report: the tables of a run as rows of text, for the console, Markdown and CSV alike."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from dstune.knobs import KNOBS, Knob
from dstune.measure.record import Figures, PlannedTrial, TrialRecord
from dstune.report import words
from dstune.report.result import Result

LABELS = {
    "goodput_per_s": "goodput, requests/s",
    "output_tokens_per_s": "output tokens/s",
    "requests_per_s": "requests/s",
    "ttft_p50_ms": "TTFT p50, ms",
    "ttft_p99_ms": "TTFT p99, ms",
    "tpot_p50_ms": "TPOT p50, ms",
    "tpot_p99_ms": "TPOT p99, ms",
    "e2e_p50_ms": "E2E p50, ms",
    "e2e_p99_ms": "E2E p99, ms",
    "success_rate": "success rate",
}


@dataclass(frozen=True)
class Table:
    """Rows of text under a head; `marked` rows stand out."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marked: tuple[int, ...] = ()


def trials_table(result: Result) -> Table:
    """The search's trials; the recommended one, else the nearest miss, is marked."""
    head = ("trial", "configuration", "TTFT p50/p99 ms", "TPOT p99 ms", "tokens/s", "goodput/s",
            "SLO")  # fmt: skip
    rows = [_trial_row(trial) for trial in result.search]
    verdict = result.run.verdict
    named = (verdict.recommended or verdict.nearest) if verdict else None
    marked = tuple(at for at, one in enumerate(result.search) if one.trial_id == named)
    return Table(head, tuple(rows), marked)


def _trial_row(trial: TrialRecord) -> tuple[str, ...]:
    def figure(name: str) -> str:
        estimate = trial.figures.get(name)
        return words.number(estimate.value if estimate else None)

    return (
        trial.trial_id,
        words.knobs(trial.changed),
        f"{figure('ttft_p50_ms')}/{figure('ttft_p99_ms')}" if trial.is_measured else words.ABSENT,
        figure("tpot_p99_ms"),
        figure("output_tokens_per_s"),
        figure("goodput_per_s"),
        words.standing(trial),
    )


def comparison_table(result: Result) -> Table | None:
    """The recommended configuration's figures beside the default's and the next best's."""
    chosen = result.recommendation
    if chosen is None:
        return None
    runner_up = chosen.runner_up
    head = ("figure", f"recommended {chosen.recommended.trial_id}", "default", "of the default's",
            f"runner-up {runner_up.measured.trial_id}" if runner_up else "runner-up")  # fmt: skip
    sides: list[Figures] = [
        chosen.recommended.figures,
        chosen.default.figures if chosen.default else {},
        runner_up.against_recommended if runner_up else {},
    ]
    rows = [
        (
            label,
            words.with_interval(sides[0].get(name)),
            words.with_interval(sides[1].get(name)),
            words.ratio(chosen.gain.get(name)),
            words.ratio(sides[2].get(name)),
        )
        for name, label in LABELS.items()
    ]
    return Table(head, tuple(rows))


def plan_table(plan: Sequence[PlannedTrial]) -> Table:
    """What a sweep would try, in its order, with the restart before each."""
    rows = tuple(
        (one.trial_id, one.origin, words.knobs(one.changed),
         one.restart.value if one.restart else words.ABSENT)
        for one in plan
    )  # fmt: skip
    return Table(("trial", "origin", "configuration", "restart before it"), rows)


def knob_table() -> Table:
    """The table of tunable knobs."""
    head = ("knob", "also called", "default", "values", "unit", "restart", "meaning")
    rows = tuple(
        (knob.name, knob.also_called, words.knob_value(knob.default), _values(knob), knob.unit,
         knob.restart.value, knob.meaning)
        for knob in KNOBS
    )  # fmt: skip
    return Table(head, rows)


def narrow_knob_table() -> Table:
    """The same for a console, where seven columns do not fit."""
    rows = []
    for knob in KNOBS:
        values = f"{_values(knob)} {knob.unit}".strip()
        also = f" (also called {knob.also_called})" if knob.also_called else ""
        rows.append((knob.name, words.knob_value(knob.default), knob.restart.value,
                     f"{knob.meaning}{also}; {values}"))  # fmt: skip
    return Table(("knob", "default", "restart", "meaning; values"), tuple(rows))


def _values(knob: Knob) -> str:
    if knob.kind == "bool":
        return "true, false"
    if knob.choices:
        return ", ".join(words.knob_value(choice) for choice in knob.choices)
    low, high = knob.low or 0, knob.high or 0
    return f"{low:,.0f} to {high:,.0f}" if knob.kind == "int" else f"{low:g} to {high:g}"


def as_markdown(table: Table) -> str:
    """A table in Markdown; marked rows are bold in their first cell."""
    lines = [_markdown_row(table.head), _markdown_row(["---"] * len(table.head))]
    for at, row in enumerate(table.rows):
        first = f"**{row[0]}**" if at in table.marked else row[0]
        lines.append(_markdown_row([first, *row[1:]]))
    return "\n".join(lines) + "\n"


def as_records(table: Table) -> list[dict[str, str]]:
    """A table as one mapping per row."""
    return [dict(zip(table.head, row, strict=True)) for row in table.rows]


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def trials_csv(result: Result) -> str:
    """Every trial, confirmation included, with every knob and figure, as CSV."""
    figures = list(dict.fromkeys(name for one in result.trials for name in one.figures))
    knobs = [knob.name for knob in KNOBS]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["trial_id", "phase", "origin", "status", "meets_slo", "reason", *knobs,
                     *figures])  # fmt: skip
    for one in result.trials:
        values = [one.figures[name].value if name in one.figures else None for name in figures]
        writer.writerow([one.trial_id, one.phase, one.origin, one.status, one.meets_slo, one.reason,
                         *(one.knobs.get(name) for name in knobs), *values])  # fmt: skip
    return out.getvalue()
