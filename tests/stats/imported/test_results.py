"""Another tool's results as a session: what is read, in which order, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dstune.errors import DstuneError, ExitCode, NotComparable, UsageError
from dstune.stats.imported import read_results

BENCH: dict[str, Any] = {
    "date": "20261201-100000", "model_id": "m", "num_prompts": 2, "request_rate": 8.0,
    "max_concurrency": None, "duration": 2.0, "completed": 2, "failed": 0,
    "total_output_tokens": 10, "request_throughput": 1.0, "total_token_throughput": 9.0,
    "median_ttft_ms": 50.0, "p99_ttft_ms": 90.0,
}  # fmt: skip
SGLANG: dict[str, Any] = {
    "duration": 2.0, "completed": 1, "total_output_tokens": 2, "total_output_tokens_retokenized": 2,
    "output_lens": [2], "ttfts": [0.1], "itls": [[0.01]], "input_lens": [5],
}  # fmt: skip


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def test_one_file_is_a_session_of_one_run(tmp_path: Path) -> None:
    session = read_results(write(tmp_path / "run.json", BENCH))
    assert (session.name, session.subject.tool) == ("run.json", "vllm bench serve")
    assert [one.name for one in session.runs] == ["run.json"]
    assert session.subject.workload == {
        "request_rate": 8.0, "num_prompts": 2, "concurrency": "unlimited"
    }  # fmt: skip


def test_runs_are_ordered_by_the_time_they_were_made(tmp_path: Path) -> None:
    for name, date in (
        ("a", "20261201-120000"),
        ("b", "20261201-090000"),
        ("c", "20261130-230000"),
    ):
        write(tmp_path / f"{name}.json", {**BENCH, "date": date})
    assert [one.name for one in read_results(tmp_path).runs] == ["c.json", "b.json", "a.json"]


def test_without_a_time_in_all_of_them_they_are_ordered_by_name(tmp_path: Path) -> None:
    for name, date in (("b", "20261201-090000"), ("a", "yesterday")):
        write(tmp_path / f"{name}.json", {**BENCH, "date": date})
    assert [one.name for one in read_results(tmp_path).runs] == ["a.json", "b.json"]


def test_every_line_of_a_file_is_a_run(tmp_path: Path) -> None:
    later = {**BENCH, "date": "20261201-110000"}
    (tmp_path / "all.json").write_text(json.dumps(BENCH) + "\n" + json.dumps(later))
    names = [one.name for one in read_results(tmp_path).runs]
    assert names == ["all.json, line 1", "all.json, line 2"]


def test_a_result_is_known_by_what_it_holds(tmp_path: Path) -> None:
    write(tmp_path / "no-ending", BENCH)
    (tmp_path / "server.log").write_bytes(b"\xff\xfe started")
    (tmp_path / ".hidden.json").write_text("{")
    write(tmp_path / "settings.json", {"model": "m"})
    write(tmp_path / "list.json", [1, 2])
    assert [one.name for one in read_results(tmp_path).runs] == ["no-ending"]


def test_subfolders_are_read_where_the_folder_holds_no_result(tmp_path: Path) -> None:
    write(tmp_path / "plan.json", {"runs": 2})
    write(tmp_path / "runs/1/out.json", BENCH)
    write(tmp_path / "runs/2/out.json", {**BENCH, "date": "20261201-110000"})
    write(tmp_path / "runs/2/parts/deep.json", BENCH)
    names = [one.name for one in read_results(tmp_path).runs]
    assert names == ["runs/1/out.json", "runs/2/out.json"]


def test_all_requests_failed_is_a_run_without_figures(tmp_path: Path) -> None:
    lost = {**BENCH, "completed": 0, "failed": 2, "total_output_tokens": 0, "p99_ttft_ms": 0.0}
    (run,) = read_results(write(tmp_path / "run.json", lost)).runs
    assert (run.num_ok, run.num_failed, run.figures) == (0, 2, {})


def test_lengths_count_only_where_every_run_has_the_same(tmp_path: Path) -> None:
    raw = {"ttfts": [0.1, 0.1], "itls": [[], []]}
    for at, lens in enumerate(([1, 1], [1, 1])):
        write(tmp_path / f"{at}.json",
              {**BENCH, **raw, "input_lens": [5, 7 + at], "output_lens": lens})  # fmt: skip
    workload = read_results(tmp_path).subject.workload
    assert "output_lens_digest" in workload and "input_lens_digest" not in workload
    write(tmp_path / "1.json", {**BENCH, **raw, "failed": 1, "output_lens": [1, 1]})
    assert "output_lens_digest" not in read_results(tmp_path).subject.workload


@pytest.mark.parametrize(
    ("files", "error", "code", "message"),
    [
        ({}, UsageError, ExitCode.USAGE, "is empty"),
        ({"a.json": {"x": 1}}, UsageError, ExitCode.USAGE, "holds no result of a known tool"),
        ({"a.json": BENCH, "b.json": SGLANG}, NotComparable, ExitCode.NOT_COMPARABLE,
         "results of several tools"),
        ({"a.json": BENCH, "b.json": {**BENCH, "model_id": "other"}}, NotComparable,
         ExitCode.NOT_COMPARABLE, "model is m in"),
        ({"a.json": BENCH, "b.json": {**BENCH, "request_rate": "inf"}}, NotComparable,
         ExitCode.NOT_COMPARABLE, "request_rate is 8.0 in"),
        ({"a.json": {**BENCH, "duration": "long"}}, UsageError, ExitCode.USAGE,
         "a.json is no whole result of vllm bench serve: duration"),
        ({"a.json": {**BENCH, "failed": None, "num_prompts": None}}, UsageError, ExitCode.USAGE,
         "a.json does not tell how many requests failed"),
        ({"a.json": {**BENCH, "ttfts": [0.1], "itls": [], "output_lens": [2]}}, UsageError,
         ExitCode.USAGE, "a.json is damaged: ttfts, itls and output_lens"),
        ({"a.json": {key: SGLANG[key] for key in SGLANG if key != "itls"}}, UsageError,
         ExitCode.USAGE, "--output-details"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_in_one_line(
    tmp_path: Path, files: dict[str, Any], error: type[DstuneError], code: ExitCode, message: str
) -> None:
    for name, content in files.items():
        write(tmp_path / name, content)
    with pytest.raises(error) as caught:
        read_results(tmp_path)
    assert caught.value.exit_code is code
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "line 1"),
        (json.dumps(BENCH)[:-20], "line 1"),
        (json.dumps(BENCH, indent=1)[:-20], "line "),
        (json.dumps(BENCH) + "\n" + json.dumps(BENCH)[:-20], "line 2 is not JSON"),
        ("\x00\x01", "line 1"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, text: str, where: str) -> None:
    write(tmp_path / "good.json", BENCH)
    (tmp_path / "torn.json").write_text(text)
    with pytest.raises(UsageError) as caught:
        read_results(tmp_path)
    assert "torn.json is damaged" in str(caught.value) and where in str(caught.value)


def test_bytes_that_are_no_text_are_damage(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"a\.json is damaged: it is not text"):
        read_results(tmp_path)


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no"):
        read_results(tmp_path / "nowhere")


def test_the_session_began_with_its_first_run(tmp_path: Path) -> None:
    for name, date in (("a", "20261201-120000"), ("b", "20261201-090000")):
        write(tmp_path / f"{name}.json", {**BENCH, "date": date})
    assert read_results(tmp_path).started_utc == "2026-12-01T09:00:00"
