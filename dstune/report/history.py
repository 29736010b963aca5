"""Report: a figure over earlier runs: a table, and a plot with the points where it changed."""

from __future__ import annotations

import re
from typing import Any

from rich.console import Console
from rich.text import Text

from dstune.measure.history import History, HistoryGroup, HistoryRow
from dstune.report import words
from dstune.report.gate_tables import label as figure_label
from dstune.report.tables import Table
from dstune.report.terminal import as_rich, stdout

PLOT_WIDTH, PLOT_HEIGHT = 100, 16
MOST_TICKS = 12
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_ASCII = str.maketrans("┌┐└┘├┤┬┴┼─│", "+++++++++-|")


def print_history(found: History, console: Console | None = None) -> None:
    """Each group of comparable runs by itself, oldest first; then what could not be read."""
    out = console or stdout()
    label = figure_label(found.metric)
    for group in found.groups:
        _say(out, heading(group))
        rich = as_rich(history_table(group, label))
        for shown, one in zip(rich.rows, group.rows, strict=True):
            # a change is news, not good news
            shown.style = "bold yellow" if one.is_change else "dim" if one.doubt else None
        out.print(rich)
        _print_plot(group, label, out)
        if group.note:
            _say(out, group.note)
    for lost in found.skipped:
        _say(out, f"skipped {lost.name}: {lost.reason}")


def _say(out: Console, line: str) -> None:
    out.print(Text(line), soft_wrap=True)


def heading(group: HistoryGroup) -> str:
    """What the runs of a group have in common, as far as it is known."""
    precision = group.precision
    if group.kv_cache_dtype:
        precision = f"{precision}, KV cache {group.kv_cache_dtype}".removeprefix(", ")
    parts = (group.profile, group.model, precision, group.load, group.machine)
    return "; ".join(part for part in parts if part) or "runs that do not tell what they are of"


def history_table(group: HistoryGroup, label: str) -> Table:
    """A row per run; it says where the level changed, and which runs do not count."""
    head = ("#", "started", "run", "of", "revision", "configuration", label, "")
    rows = tuple(_row(at, one) for at, one in enumerate(group.rows, 1))
    return Table(head, rows)


def _row(number: int, one: HistoryRow) -> tuple[str, ...]:
    remarks = ["changed here"] if one.is_change else []
    remarks += ["accepted"] if one.is_accepted else []
    remarks += [f"does not count: {one.doubt}"] if one.doubt else []
    return (
        str(number),
        one.started_utc or words.ABSENT,
        one.name,
        one.verb,
        (one.revision or words.ABSENT)[:12],
        words.knobs(one.configuration),
        words.with_interval(one.value),
        "; ".join(remarks),
    )


def _print_plot(group: HistoryGroup, label: str, out: Console) -> None:
    text = plot(group, label, min(out.width, PLOT_WIDTH))
    if not text:
        return
    out.print(Text(text.translate(_ASCII) if out.options.ascii_only else text))
    legend = ["o a run"]
    legend += ["x a run that does not count"] if any(one.doubt for one in group.rows) else []
    if any(one.is_change for one in group.rows):
        legend.append("| the level changed")
    _say(out, "   ".join(legend))


def plot(group: HistoryGroup, label: str, width: int) -> str:
    """The figure over the runs by their numbers in the table; empty with fewer than two values."""
    values = {at: one.value.value for at, one in enumerate(group.rows, 1)}
    known = {at: value for at, value in values.items() if value is not None}
    if len(known) < 2:
        return ""
    import plotext  # only where there is something to draw

    figure: Any = plotext  # it draws one figure, its own
    figure.clear_figure()
    figure.theme("clear")
    figure.plotsize(width, PLOT_HEIGHT)
    figure.title(label)
    doubtful = {at for at, one in enumerate(group.rows, 1) if one.doubt}
    for marker, chosen in (("o", known.keys() - doubtful), ("x", known.keys() & doubtful)):
        if chosen:
            numbers = sorted(chosen)
            figure.scatter(numbers, [known[one] for one in numbers], marker=marker)
    for at, one in enumerate(group.rows, 1):
        if one.is_change:
            figure.vline(at - 0.5)
    figure.xlim(0.5, len(group.rows) + 0.5)
    step = -(-len(group.rows) // MOST_TICKS)
    ticks = list(range(1, len(group.rows) + 1, step))
    figure.xticks(ticks, list(map(str, ticks)))
    lines = _COLOUR.sub("", figure.build()).rstrip("\n").split("\n")
    return "\n".join(line.rstrip() for line in lines)


def history_document(found: History) -> dict[str, Any]:
    """The same for scripts."""
    return found.model_dump(mode="json")
