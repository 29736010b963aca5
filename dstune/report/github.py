"""Report: a gate's result to GitHub Actions: an annotation, and the job's summary.

Workflow commands are lines of a step's output that begin with `::`; the runner reads them from
stderr too, which leaves stdout to `--json`
(docs.github.com/actions, "Workflow commands for GitHub Actions").
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from dstune.errors import UsageError
from dstune.measure.comparison import GateResult
from dstune.measure.record import Claim
from dstune.report import gate_tables as tables
from dstune.report.gate_markdown import gate_summary

_COMMANDS = {Claim.FAIL: "error", Claim.INCONCLUSIVE: "warning", Claim.PASS: "notice"}


def announce(result: GateResult, variables: Mapping[str, str] = os.environ) -> None:
    """Annotates and appends to the summary, where GitHub's variables say that it listens.

    Raises `UsageError` where the summary cannot be written.
    """
    _say(annotation(result), gate_summary(result), variables)


def announce_verdict(
    claim: Claim | None, message: str, summary: str, variables: Mapping[str, str] = os.environ
) -> None:
    """The same for a verdict without metrics, or (None) for that there is none."""
    command = "error" if claim is None else _COMMANDS[claim]
    title = "dstune gate" if claim is None else f"dstune gate: {tables.VERDICTS[claim]}"
    _say(f"::{command} title={_property(title)}::{_data(message)}", summary, variables)


def _say(command: str, text: str, variables: Mapping[str, str]) -> None:
    if variables.get("GITHUB_ACTIONS") == "true":
        print(command, file=sys.stderr, flush=True)
    summary = variables.get("GITHUB_STEP_SUMMARY")
    if summary:
        try:
            with open(Path(summary), "a", encoding="utf-8") as file:
                file.write(text + "\n")
        except OSError as error:
            message = f"cannot write GITHUB_STEP_SUMMARY, {summary}: {error.strerror}"
            raise UsageError(message) from error


def annotation(result: GateResult) -> str:
    """`::error title=dstune gate%3A FAIL::...`, with what got slower below the verdict."""
    advisory = " (advisory)" if result.is_advisory else ""
    title = f"dstune gate: {tables.VERDICTS[result.claim]}{advisory}"
    lines = [tables.headline(result)]
    lines += [
        f"{tables.label(one.metric)}: {tables.metric_change(one)}"
        for one in result.metrics
        if one.claim is result.claim and one.claim is not Claim.PASS
    ]
    explained = tables.explanation_table(result)
    if explained is not None:
        lines += [f"{row[0]} ({row[2]}): {row[3]}, {row[4]} of the slowdown"
                  for row in explained.rows]  # fmt: skip
    message = "\n".join(lines)
    return f"::{_COMMANDS[result.claim]} title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    """Escaped for a command's message; the percent sign first, for it is the escape."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Escaped for a command's property, where colon and comma end it."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")
