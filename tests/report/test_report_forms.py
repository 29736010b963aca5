"""A run printed in every form, whole, cut short and without a recommendation."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from fakes import TEXT, FakeClock, FakeTarget, Recorder
from rich.console import Console

from dstune.measure.progress import LoadProgress
from dstune.measure.record import Estimate, Started
from dstune.measure.run_folder import RunFolder
from dstune.profile.load import parse_profile
from dstune.report import words
from dstune.report.console import LiveConsole, print_result
from dstune.report.markdown import summary
from dstune.report.result import Result, as_document, read_result
from dstune.report.tables import as_markdown, as_records, knob_table, narrow_knob_table, trials_csv
from dstune.tune.bench import Setting
from dstune.tune.sweep import begin, sweep

PROFILE = """
name: chat
scenario: low_latency
workload: {prompt_tokens: 20, output_tokens: 8, num_requests: 20}
slo: {tpot_p99_ms: 12}
search: {max_num_seqs: [2, 8, 64], max_num_batched_tokens: [32, 512]}
budget: {repetitions: 1}
"""


def result(root: Path, *overrides: str, interrupts_at_run: int | None = None) -> Result:
    clock = FakeClock()
    target = FakeTarget(clock, interrupts_at_run=interrupts_at_run)
    folder = begin(parse_profile("p.yaml", PROFILE, overrides), root, ["sweep", "p.yaml"], {})
    sweep(folder, Setting(lambda _: target, Recorder(), lambda: TEXT, clock.now_ns, clock.read_cpu))
    return read_result(folder)


def printed(one: Result, width: int = 120) -> str:
    out = io.StringIO()
    print_result(one, Console(file=out, width=width))
    return out.getvalue()


def test_a_finished_run_on_the_console(tmp_path: Path) -> None:
    text = printed(result(tmp_path))
    assert "recommended for chat" in text
    assert "max_num_seqs: 8 sequences" in text
    assert "skipped max_num_seqs=64 max_num_batched_tokens=32" in text
    assert "TTFT p99, ms" in text and "claim inconclusive" in text
    assert "recommended.yaml" in text


@pytest.mark.parametrize("width", [40, 80, 200])
def test_it_fits_any_window(tmp_path: Path, width: int) -> None:
    lines = printed(result(tmp_path), width).split("\n")
    tables = [one for one in lines if one.startswith(("┃", "│", "╭"))]
    assert tables and all(len(line) <= width for line in tables)


def test_a_run_without_a_recommendation(tmp_path: Path) -> None:
    one = result(tmp_path, "slo.tpot_p99_ms=0.1")
    text = printed(one)
    assert "recommended for" not in text and "none of 6 configurations meets the SLO" in text
    assert "## Trials" in summary(one)
    assert as_document(one)["recommendation"] is None


def test_an_interrupted_run(tmp_path: Path) -> None:
    text = printed(result(tmp_path, interrupts_at_run=4))
    assert "interrupted: go on with: dstune sweep --resume" in text
    assert "t001" in text and "t002" not in text


def test_a_killed_run_says_so(tmp_path: Path) -> None:
    one = result(tmp_path, interrupts_at_run=4)
    folder = RunFolder(one.folder)
    folder.write_run(one.run.model_copy(update={"status": "running", "verdict": None}))
    assert "killed after 2 of 6 trials; go on with: dstune sweep" in printed(read_result(folder))
    with folder.locked():
        assert "running: 2 of 6 trials so far" in printed(read_result(folder))


def test_json_is_the_whole_run(tmp_path: Path) -> None:
    one = result(tmp_path)
    document = json.loads(json.dumps(as_document(one), allow_nan=False))
    assert document["schema_version"] == 1
    assert document["run"]["profile"]["name"] == "chat"
    assert len(document["trials"]) == len(one.trials)
    assert document["recommendation"]["recommended"]["claim"] == "inconclusive"


def test_markdown_has_the_recommendation_first(tmp_path: Path) -> None:
    text = summary(result(tmp_path))
    assert text.startswith("# chat: finished: t00")
    assert text.index("| figure |") < text.index("## Trials")
    assert "| **t00" in text


def test_csv_has_a_row_for_each_trial_with_every_knob(tmp_path: Path) -> None:
    one = result(tmp_path)
    rows = list(csv.DictReader(io.StringIO(trials_csv(one))))
    assert [row["trial_id"] for row in rows] == [trial.trial_id for trial in one.trials]
    assert rows[0]["max_num_seqs"] == "32" and float(rows[0]["ttft_p99_ms"]) > 0


def test_the_knob_table_in_markdown_and_for_a_window() -> None:
    assert "| block_size |  | 16 | 8, 16, 32, 64, 128, 256 | tokens | rebuild |" in as_markdown(
        knob_table()
    )
    assert len(narrow_knob_table().rows) == len(knob_table().rows)
    assert as_records(knob_table())[0]["knob"] == "max_num_seqs"


def test_words() -> None:
    assert words.number(None) == "-"
    assert [words.number(one) for one in (0.01234, 12.34, 1234.5)] == ["0.0123", "12.3", "1,234"]
    assert words.with_interval(Estimate(value=5, low=4, high=None)) == "5 [4, ..]"
    assert words.with_interval(Estimate(value=5)) == "5"
    assert words.ratio(Estimate(value=1.5, low=1.25, high=2)) == "1.50x [1.25, 2.00]"
    assert words.knobs({"enable_prefix_caching": False, "max_model_len": None}) == (
        "enable_prefix_caching=false max_model_len=unset"
    )
    assert [words.duration(one) for one in (0.4, 61, 3720)] == ["0s", "1m 01s", "1h 02m"]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_live_progress_names_trial_eta_and_best(tmp_path: Path, is_terminal: bool) -> None:
    one = result(tmp_path)
    out = io.StringIO()
    console = Console(file=out, width=200, force_terminal=is_terminal, color_system=None)
    with LiveConsole(console) as live:
        live.begins(one.run, tmp_path, 1)
        live.notes("something")
        changed = {"max_num_seqs": 2}
        live.starts(Started(trial_id="t001", phase="search", number=2, total=6, changed=changed,
                            eta_s=75.0, best=one.trials[0]))  # fmt: skip
        live.advances(1, 2, LoadProgress(planned=20, finished=10))
        live.finishes(one.trials[1])
    text = out.getvalue()
    assert "trial 2 of 6: max_num_seqs=2; 1m 15s left; best so far t000 (default)" in text
    assert "note: something" in text and "t001 ttft p99" in text
    assert ("repetition 1 of 2, 10/20" in text) == is_terminal
