"""Report: a gate's result as Markdown, for a job's summary or a comment."""

from __future__ import annotations

from dstune.measure.comparison import GateResult
from dstune.report import gate_tables as tables
from dstune.report.tables import as_markdown


def gate_summary(result: GateResult) -> str:
    """The verdict first, then the metrics, what explains a failure, and what to know beside it."""
    parts = [f"## dstune gate: {tables.headline(result)}\n", f"{tables.what_line(result)}.\n"]
    if result.metrics or result.quality is not None:
        parts.append(as_markdown(tables.metric_table(result)))
    explained = tables.explanation_table(result)
    if explained is not None:
        parts += ["### What got slower\n", as_markdown(explained)]
    lines = [*tables.note_lines(result), tables.thresholds_line(result)]
    parts.append("".join(f"- {line}\n" for line in lines))
    return "\n".join(parts)
