"""A gate's result as JUnit XML, read back as a CI system does."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from gate_results import (
    ALL,
    CUT_SHORT,
    FAILED,
    PASSED,
    STORED,
    TEXT_FAILED,
    UNDECIDED,
)

from dstune.errors import UsageError
from dstune.measure.comparison import GateResult
from dstune.measure.record import Claim
from dstune.report.junit import junit, write_junit, write_verdict


def suite_of(result: GateResult) -> ElementTree.Element:
    found = ElementTree.fromstring(junit(result)).find("testsuite")
    assert found is not None
    return found


def cases(result: GateResult) -> dict[str, list[str]]:
    return {one.attrib["name"]: [inside.tag for inside in one]
            for one in suite_of(result).findall("testcase")}  # fmt: skip


def counts(result: GateResult) -> tuple[str, ...]:
    attributes = suite_of(result).attrib
    return tuple(attributes[name] for name in ("tests", "failures", "errors", "skipped"))


def test_a_pass() -> None:
    assert cases(PASSED) == {"output_tokens_per_s": [], "ttft_p50_ms": [], "quality": []}
    assert counts(PASSED) == ("3", "0", "0", "0")


def test_a_failure_carries_its_size_and_what_explains_it() -> None:
    assert cases(FAILED) == {"output_tokens_per_s": [], "ttft_p95_ms": ["failure"], "quality": []}
    assert counts(FAILED) == ("3", "1", "0", "0")
    failure = suite_of(FAILED).find("testcase/failure")
    assert failure is not None and failure.text is not None
    assert failure.attrib["message"] == "TTFT p95, ms: 12.0% slower [8.4% to 15.8% slower]"
    assert "attention.decode (decode): 80.0% slower" in failure.text
    assert "91% [84%, 98%] of the slowdown" in failure.text


def test_an_open_question_is_an_error_not_a_pass() -> None:
    assert cases(UNDECIDED) == {"ttft_p50_ms": [], "tpot_p99_ms": ["error"], "quality": ["skipped"]}
    assert counts(UNDECIDED) == ("3", "0", "1", "1")
    error = suite_of(UNDECIDED).find("testcase/error")
    assert error is not None
    assert "about 19 pairs would decide" in error.attrib["message"]
    skipped = suite_of(UNDECIDED).find("testcase/skipped")
    assert skipped is not None and skipped.attrib["message"] == "not asked for"


def test_quality_fails_by_itself() -> None:
    assert cases(TEXT_FAILED) == {"ttft_p50_ms": [], "quality": ["failure"]}


def test_what_no_metric_tells_is_a_case_of_its_own() -> None:
    assert cases(CUT_SHORT) == {"quality": ["skipped"], "verdict": ["error"]}


def test_advisory_is_said() -> None:
    failure = suite_of(STORED).find("testcase/failure")
    assert failure is not None and failure.attrib["message"].startswith("advisory: TTFT p95")
    assert all("advisory" in one.attrib["classname"] for one in suite_of(STORED).iter("testcase"))
    assert b"advisory" not in junit(FAILED)


def test_text_that_xml_cannot_hold() -> None:
    odd = UNDECIDED.model_copy(update={"quality_note": "a \x1b[31m<b> & \x00", "notes": ("\x07",)})
    skipped = suite_of(odd).find("testcase/skipped")
    assert skipped is not None and skipped.attrib["message"] == "a ?[31m<b> & ?"


@pytest.mark.parametrize("result", ALL.values(), ids=ALL)
def test_the_exit_code_and_the_xml_agree(result: GateResult) -> None:
    _, failures, errors, _ = counts(result)
    assert (result.exit_code == 0) == (failures == errors == "0")


def test_the_file_and_its_folder_are_made(tmp_path: Path) -> None:
    path = tmp_path / "out/gate.xml"
    write_junit(FAILED, path)
    assert path.read_bytes() == junit(FAILED)
    with pytest.raises(UsageError, match="cannot write"):
        write_junit(FAILED, path / "below-a-file.xml")


def test_a_verdict_without_metrics(tmp_path: Path) -> None:
    path = tmp_path / "gate.xml"
    for claim, kind, counted in (
        (Claim.PASS, None, ("0", "0")),
        (Claim.FAIL, "failure", ("1", "0")),
        (None, "error", ("0", "1")),
    ):
        write_verdict(path, claim, "two figures\x00 changed")
        suite = ElementTree.parse(path).getroot().find("testsuite")
        assert suite is not None
        assert (suite.attrib["failures"], suite.attrib["errors"]) == counted
        (case,) = suite.findall("testcase")
        assert [one.tag for one in case] == ([kind] if kind else [])
        assert all(one.attrib["message"] == "two figures? changed" for one in case)
