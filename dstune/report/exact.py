"""Report: exact figures beside their baseline: what changed, or that nothing did."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from dstune.measure.exact_figures import ExactResult
from dstune.report import words
from dstune.report.tables import Table, as_markdown
from dstune.report.terminal import as_rich, stdout


def exact_table(result: ExactResult) -> Table:
    """Every figure that differs, in order of its name."""
    rows = [
        (one.figure, _number(one.baseline), _number(one.candidate),
         f"{one.candidate - one.baseline:+,g}")
        for one in result.changed
    ]  # fmt: skip
    rows += [(name, words.ABSENT, _number(value), "added") for name, value in result.added.items()]
    rows += [(name, _number(value), words.ABSENT, "gone") for name, value in result.gone.items()]
    return Table(("figure", "baseline", "candidate", "change"), tuple(sorted(rows)))


def _number(value: float) -> str:
    return f"{value:,}"


def print_exact(result: ExactResult, console: Console | None = None) -> None:
    """Prints what differs, then the verdict."""
    out = console or stdout()
    if not result.is_pass:
        out.print(as_rich(exact_table(result)))
    out.print(Text(result.message, style="bold"), soft_wrap=True)


def exact_markdown(result: ExactResult) -> str:
    """The verdict, then what differs."""
    text = f"{result.message}\n"
    return text if result.is_pass else f"{text}\n{as_markdown(exact_table(result))}"


def exact_document(result: ExactResult) -> dict[str, Any]:
    """The comparison as one JSON document."""
    return {
        **result.model_dump(mode="json"),
        "verdict": "pass" if result.is_pass else "fail",
        "exit_code": int(result.exit_code),
        "message": result.message,
    }
