"""Report: a gate's result as JUnit XML, which every CI system reads."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from dstune.errors import UsageError
from dstune.measure.comparison import GateResult, MetricChange
from dstune.measure.files import write_atomically
from dstune.measure.record import Claim
from dstune.report import gate_tables as tables

SUITE = "dstune gate"
# XML 1.0 has no way to write these, not even escaped
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

# JUnit's error is a test that could not be decided, and everywhere counts as not passed. Skipped
# would be the milder word, but Jenkins, GitLab and GitHub's reporters leave a run with skipped
# tests green, and an open question must not look like a pass.
_ELEMENTS = {Claim.FAIL: "failure", Claim.INCONCLUSIVE: "error"}


def write_junit(result: GateResult, path: Path) -> None:
    """Writes it to `path`; raises `UsageError` where that cannot be written."""
    _write(path, junit(result))


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def write_verdict(path: Path, claim: Claim | None, message: str) -> None:
    """A verdict without metrics, or (None) that there is none: one test case to `path`."""
    kind = "error" if claim is None else _ELEMENTS.get(claim)
    suite = ElementTree.Element(
        "testsuite", name=SUITE, tests="1", failures=str(int(kind == "failure")),
        errors=str(int(kind == "error")), skipped="0",
    )  # fmt: skip
    case = ElementTree.SubElement(suite, "testcase", classname="dstune.gate", name="verdict")
    if kind is not None:
        found = ElementTree.SubElement(case, kind, message=_clean(message))
        found.text = _clean(message)
    _write(path, _document(suite))


def junit(result: GateResult) -> bytes:
    """One test case per metric and one for quality; one for the verdict where those do not tell."""
    suite = ElementTree.Element("testsuite", name=SUITE)
    told = [one.claim for one in result.metrics]
    for one in result.metrics:
        _case(suite, one.metric, one.claim, _metric_message(one), result)
    if result.quality is not None:
        told.append(result.quality.claim)
        size = tables.change(result.quality.change, "worse", "better", digits=2)
        message = f"{tables.quality_label(result.quality)} {size}"
        _case(suite, "quality", result.quality.claim, message, result)
    else:  # nothing is left open here: it was not asked for, or cannot be scored
        case = ElementTree.SubElement(suite, "testcase", classname=_class(result), name="quality")
        note = result.quality_note or "no text was scored"
        ElementTree.SubElement(case, "skipped", message=_clean(note))
    if result.claim is not Claim.PASS and result.claim not in told:
        _case(suite, "verdict", result.claim, result.message, result)
    out = ElementTree.SubElement(suite, "system-out")
    out.text = _clean("\n".join(_lines(result)))
    for name, element in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f"testcase/{element}"))))
    suite.set("tests", str(len(suite.findall("testcase"))))
    return _document(suite)


def _document(suite: ElementTree.Element) -> bytes:
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _case(
    suite: ElementTree.Element, name: str, claim: Claim, message: str, result: GateResult
) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=_class(result), name=_clean(name))
    if claim not in _ELEMENTS:
        return
    advisory = "advisory: " if result.is_advisory else ""
    found = ElementTree.SubElement(
        case, _ELEMENTS[claim], type=str(claim), message=_clean(f"{advisory}{message}")
    )
    found.text = _clean("\n".join(_lines(result)))


def _class(result: GateResult) -> str:
    return "dstune.gate.advisory" if result.is_advisory else "dstune.gate"


def _metric_message(one: MetricChange) -> str:
    text = f"{tables.label(one.metric)}: {tables.metric_change(one)}"
    if one.claim is not Claim.INCONCLUSIVE:
        return text
    needed = one.pairs_needed
    hint = f"; about {needed} pairs would decide" if needed is not None else ""
    return f"{text}, which decides nothing{hint}"


def _lines(result: GateResult) -> list[str]:
    """What a reader of a failed case wants to see at once."""
    lines = [tables.headline(result), tables.what_line(result), *tables.note_lines(result)]
    explained = tables.explanation_table(result)
    for row in explained.rows if explained is not None else ():
        lines.append(f"{row[0]} ({row[2]}): {row[3]}, {row[4]} of the slowdown")
    return lines


def _clean(text: str) -> str:
    return _ILLEGAL.sub("?", text)
