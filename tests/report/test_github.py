"""A gate's result to GitHub Actions: escaping as its runner undoes it, and the job's summary."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from gate_results import ALL, FAILED, PASSED, STORED, UNDECIDED

from dstune.errors import UsageError
from dstune.measure.comparison import GateResult
from dstune.measure.record import Claim
from dstune.report.gate_markdown import gate_summary
from dstune.report.github import annotation, announce, announce_verdict

COMMAND = re.compile(r"::(error|warning|notice) title=([^,:]*)::([^\r\n]*)")


def understood(line: str) -> tuple[str, str, str]:
    """A workflow command as the runner reads it."""
    match = COMMAND.fullmatch(line)
    assert match is not None, line
    kind, title, message = match.groups()
    for code, text in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        title = title.replace(code, text)
        message = message if text in ":," else message.replace(code, text)
    return kind, title, message


def test_a_failure_is_an_error_with_what_got_slower() -> None:
    kind, title, message = understood(annotation(FAILED))
    assert (kind, title) == ("error", "dstune gate: FAIL")
    assert message.split("\n") == [
        "FAIL: ttft_p95_ms is worse by 12.0%",
        "TTFT p95, ms: 12.0% slower [8.4% to 15.8% slower]",
        "attention.decode (decode): 80.0% slower [70.0% to 90.0% slower], "
        "91% [84%, 98%] of the slowdown",
    ]


def test_an_open_question_is_a_warning_and_a_pass_a_notice() -> None:
    assert understood(annotation(UNDECIDED))[:2] == ("warning", "dstune gate: inconclusive")
    assert understood(annotation(PASSED))[:2] == ("notice", "dstune gate: pass")


def test_advisory_is_said() -> None:
    assert understood(annotation(STORED))[1] == "dstune gate: FAIL (advisory)"


def test_what_could_end_a_command_is_escaped() -> None:
    odd = FAILED.model_copy(update={"message": "100%0A\r\n::error::, done"})
    line = annotation(odd)
    assert line.startswith("::error title=dstune gate%3A FAIL::FAIL: 100%250A%0D%0A::error::, done")
    assert understood(line)[2].startswith("FAIL: 100%0A\r\n::error::, done\n")


@pytest.mark.parametrize("result", ALL.values(), ids=ALL)
def test_every_annotation_is_one_line(result: GateResult) -> None:
    assert understood(annotation(result))[2]


def test_nothing_is_said_where_nobody_listens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    announce(FAILED, {})
    announce(FAILED, {"GITHUB_ACTIONS": "false", "GITHUB_STEP_SUMMARY": ""})
    assert capsys.readouterr() == ("", "")


def test_annotations_leave_stdout_to_json(capsys: pytest.CaptureFixture[str]) -> None:
    announce(FAILED, {"GITHUB_ACTIONS": "true"})
    out, err = capsys.readouterr()
    assert out == "" and err == annotation(FAILED) + "\n"


def test_the_summary_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    announce(FAILED, {"GITHUB_STEP_SUMMARY": str(path)})
    announce(STORED, {"GITHUB_STEP_SUMMARY": str(path)})
    assert path.read_text() == f"before\n{gate_summary(FAILED)}\n{gate_summary(STORED)}\n"


def test_a_summary_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write GITHUB_STEP_SUMMARY"):
        announce(FAILED, {"GITHUB_STEP_SUMMARY": str(tmp_path)})


def test_a_verdict_without_metrics_and_that_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = tmp_path / "summary.md"
    variables = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    announce_verdict(Claim.FAIL, "2 figures changed", "## changed", variables)
    announce_verdict(None, "no verdict: model m / n", "## none", variables)
    told = [understood(line) for line in capsys.readouterr().err.splitlines()]
    assert told == [
        ("error", "dstune gate: FAIL", "2 figures changed"),
        ("error", "dstune gate", "no verdict: model m / n"),
    ]
    assert summary.read_text() == "## changed\n## none\n"
