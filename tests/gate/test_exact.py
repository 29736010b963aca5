"""Exact figures: any difference fails, other versions are not comparable, damage is one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dstune.errors import DstuneError, ExitCode, NotComparable, UsageError
from dstune.gate.exact import accept_exact, compare_exact, is_exact, read_exact
from dstune.measure.exact_figures import ExactFigures

FIGURES: dict[str, int | float] = {"kernels": 267, "registers": 128, "bytes": 1152.5}


def figures(changes: dict[str, int | float] | None = None, **fields: object) -> ExactFigures:
    values = {
        "name": "mine",
        "environment": {"triton": "3.9.0"},
        "figures": {**FIGURES, **(changes or {})},
        **fields,
    }
    return ExactFigures.model_validate(values)


def test_the_same_figures_pass() -> None:
    found = compare_exact(figures(), figures())
    assert found.is_pass and found.exit_code is ExitCode.PASS and found.num_same == 3
    assert found.message == "pass: mine: all 3 figures are as accepted"


@pytest.mark.parametrize("value", [266, 268, 267.0000001])
def test_the_least_change_in_either_direction_fails(value: float) -> None:
    found = compare_exact(figures(), figures({"kernels": value}))
    assert [(one.figure, one.baseline, one.candidate) for one in found.changed] == [
        ("kernels", 267, value)
    ]
    assert (found.exit_code, found.num_same) == (ExitCode.FAIL, 2)


def test_added_and_gone_figures_fail_too() -> None:
    fewer = figures(figures={"kernels": 267, "spills": 0})
    found = compare_exact(figures(), fewer)
    assert found.added == {"spills": 0} and found.gone == {"registers": 128, "bytes": 1152.5}
    assert not found.is_pass and found.num_same == 1
    assert "0 figures changed, 1 added, 2 gone, 1 as accepted" in found.message
    assert "dstune gate accept FILE" in found.message
    assert compare_exact(fewer, figures()).added == found.gone


def test_whole_numbers_are_equal_however_they_are_written() -> None:
    assert compare_exact(figures(), figures({"kernels": 267.0})).is_pass


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"environment": {"triton": "3.8.0"}}, "triton 3.9.0 in the baseline, 3.8.0 in the"),
        ({"environment": {}}, "triton 3.9.0 in the baseline, unknown in the candidate"),
        ({"environment": {"triton": "3.9.0", "torch": "2.13"}}, "torch unknown in the baseline"),
        ({"name": "theirs"}, "name mine in the baseline, theirs in the candidate"),
    ],
)
def test_figures_of_other_software_are_not_comparable(fields: dict[str, object], said: str) -> None:
    with pytest.raises(NotComparable) as raised:
        compare_exact(figures(), figures(**fields))
    assert said in str(raised.value) and "dstune gate accept FILE" in str(raised.value)


def test_an_accepted_set_is_read_back_and_has_one_figure_per_line(tmp_path: Path) -> None:
    path = accept_exact(figures(), tmp_path)
    assert path == tmp_path / "baselines" / "mine.exact.json"
    assert read_exact(path) == figures() and is_exact(path)
    lines = path.read_text().split("\n")
    at = lines.index(' "figures": {')
    assert lines[at + 1 : at + 4] == [
        '  "bytes": 1152.5,',
        '  "kernels": 267,',
        '  "registers": 128',
    ]
    assert path.read_text().endswith("}\n")
    assert accept_exact(figures({"kernels": 1}), tmp_path) == path
    assert read_exact(path).figures["kernels"] == 1, "the earlier baseline is replaced"


def test_accepting_twice_writes_the_same_bytes(tmp_path: Path) -> None:
    data = accept_exact(figures(), tmp_path).read_bytes()
    backwards = figures(figures=dict(reversed(FIGURES.items())))
    assert accept_exact(backwards, tmp_path).read_bytes() == data


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "baselines").write_text("a file")
    with pytest.raises(UsageError, match="cannot write"):
        accept_exact(figures(), tmp_path)


def test_documents_are_told_by_their_content(tmp_path: Path) -> None:
    def holds(text: str) -> bool:
        (tmp_path / "some.json").write_text(text)
        return is_exact(tmp_path / "some.json")

    assert holds(figures().model_dump_json())
    assert holds('{"kind": "exact"}'), "also a wrong one, whose error is then about exact figures"
    for other in ("", "{", "[]", '"exact"', "{}", '{"kind": "run"}', "\x00"):
        assert not holds(other)
    assert not is_exact(tmp_path) and not is_exact(tmp_path / "missing.json")
    assert is_exact(tmp_path / "missing.exact.json"), "by its name, so that the fix is named"


WHOLE = json.loads(figures().model_dump_json())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty"),
        (" \n", "it is empty"),
        (figures().model_dump_json()[:40], "Invalid JSON"),
        ("[]", "should be an object"),
        (json.dumps({**WHOLE, "figures": {"a": "7"}}), "figures.a"),
        (json.dumps({**WHOLE, "figures": {"a": True}}), "figures.a"),
        (json.dumps({**WHOLE, "figures": {"a": float("nan")}}), "figures.a"),
        (json.dumps({**WHOLE, "kind": "run"}), "kind"),
        (json.dumps({**WHOLE, "schema_version": 2}), "schema_version"),
        (json.dumps({**WHOLE, "name": "../../else"}), "name"),
        (json.dumps({**WHOLE, "more": 1}), "more"),
    ],
)
def test_a_damaged_file_is_one_clear_line_with_the_fix(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "mine.exact.json"
    path.write_text(text)
    with pytest.raises(DstuneError) as raised:
        read_exact(path)
    message = str(raised.value)
    assert raised.value.exit_code is ExitCode.USAGE
    assert (
        message.startswith(f"{path} holds no exact figures: ")
        and said in message
        and "\n" not in message
    )
    assert '"figures": {NAME: NUMBER, ...}' in message


def test_a_missing_file_is_one_clear_line_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        read_exact(tmp_path / "mine.exact.json")
    assert "No such file" in str(raised.value) and "dstune gate accept FILE" in str(raised.value)
