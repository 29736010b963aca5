"""`dstune loadtest` from outside, in front of the fake target: exit codes, output, errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dstune.cli.main import main

ROOT = Path(__file__).parents[2]
PROFILE = """
name: chat
scenario: low_latency
workload: {prompt_tokens: 20, output_tokens: 8}
arrivals: {kind: poisson, rate_per_s: 10}
slo: {tpot_p99_ms: 12}
knobs: {max_num_seqs: 8}
"""
ENV = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "NO_COLOR": "1", "COLUMNS": "120"}
URL = "http://127.0.0.1:1"


def dstune(folder: Path, *arguments: str, when: str = "-") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(Path(__file__).with_name("program.py")), when, *arguments],
        cwd=folder, env=ENV, capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "chat.yaml").write_text(PROFILE)
    return tmp_path


def only_run(folder: Path) -> Path:
    (run,) = (folder / "reports").iterdir()
    return run


def test_a_load_test_ends_with_its_tables_and_a_verdict(folder: Path) -> None:
    done = dstune(folder, "loadtest", "chat.yaml", "--duration", "1m")
    assert done.returncode == 0, done.stderr
    run = only_run(folder)
    assert run.name.endswith("-loadtest-chat")
    assert "TTFT" in done.stdout and "tpot_p99_ms" in done.stdout
    assert "wrong_types" in done.stdout, "hostile requests by their kind"
    last = done.stdout.rstrip("\n").split("\n")
    assert last[-2].startswith("finished: pass: every promise is kept")
    assert last[-1] == f"written to {run.relative_to(folder)}"
    begun = f"chat: load test for 1m 00s; run folder {run.relative_to(folder)}"
    assert done.stderr.startswith(begun)
    document = json.loads((run / "run.json").read_text())
    assert (document["status"], document["verb"]) == ("finished", "loadtest")
    assert document["profile"]["arrivals"]["duration"] == 60
    assert document["profile"]["workload"]["num_requests"] == 600
    bench = json.loads((run / "trials/loadtest/vllm_bench-0.json").read_text())
    # of 600 requests 30 are hostile
    assert bench["completed"] == 570
    again = dstune(folder, "report", str(run))
    assert again.returncode == 0 and "finished: pass" in again.stdout


def test_json_is_one_document_and_progress_goes_to_stderr(folder: Path) -> None:
    done = dstune(folder, "loadtest", "chat.yaml", "--duration", "3s", "--rate", "20", "--json",
                  "--output", "elsewhere")  # fmt: skip
    assert done.returncode == 3, done.stderr
    document = json.loads(done.stdout)
    (trial,) = document["trials"]
    assert trial["accounting"]["num_planned"] == 60
    assert document["run"]["verdict"]["message"].startswith("inconclusive: tpot_p99_ms: ")
    arrivals = document["run"]["profile"]["arrivals"]
    assert [arrivals[key] for key in ("kind", "rate_per_s", "duration")] == ["poisson", 20, 3]
    assert Path(folder / document["folder"]).parent.name == "elsewhere"
    assert "run folder" in done.stderr


def test_a_missed_promise_is_exit_1(folder: Path) -> None:
    done = dstune(folder, "loadtest", "chat.yaml", "--duration", "60s", "--set",
                  "slo.tpot_p99_ms=1")  # fmt: skip
    assert done.returncode == 1
    assert "finished: fail: tpot_p99_ms missed" in done.stdout


def test_users_make_a_closed_loop(folder: Path) -> None:
    done = dstune(folder, "loadtest", "chat.yaml", "--duration", "60s", "--users", "4", "--json")
    document = json.loads(done.stdout)
    arrivals = document["run"]["profile"]["arrivals"]
    assert [arrivals[key] for key in ("kind", "concurrency", "duration")] == ["concurrency", 4, 60]
    accounting = document["trials"][0]["accounting"]
    assert sum(accounting["by_status"].values()) == accounting["num_planned"]
    assert "closed_loop_hides_stalls" in [one["code"] for one in document["trials"][0]["remarks"]]


@pytest.mark.parametrize("how", ["int", "term"])
def test_a_signal_before_anything_was_measured_is_exit_130(folder: Path, how: str) -> None:
    done = dstune(folder, "loadtest", "chat.yaml", "--duration", "9s", when=f"{how}:0")
    assert done.returncode == 130, done.stderr
    assert "interrupted before anything was measured" in done.stdout
    assert json.loads((only_run(folder) / "run.json").read_text())["status"] == "interrupted"


def test_a_load_test_that_was_killed_says_how_to_run_it_again(folder: Path) -> None:
    done = dstune(folder, "loadtest", "chat.yaml", "--duration", "9s", when="1")
    assert done.returncode == -9
    shown = dstune(folder, "report", str(only_run(folder)))
    assert "killed; run it again with: dstune loadtest chat.yaml --duration 9s" in shown.stdout


def test_a_url_gets_prompts_of_its_own_unless_a_seed_is_asked_for(folder: Path) -> None:
    asked = ["loadtest", "chat.yaml", "--duration", "2s", "--target", URL]
    seeds = set()
    for number in range(2):
        done = dstune(folder, *asked, "--output", str(number), "--json")
        document = json.loads(done.stdout)["run"]
        seed = document["profile"]["workload"]["seed"]
        (note,) = document["notes"]
        assert f"--set workload.seed={seed} asks the same again" in note
        assert f"note: {note}" in done.stderr
        seeds.add(seed)
    assert len(seeds) == 2
    done = dstune(folder, *asked, "--json", "--set", "workload.seed=5")
    document = json.loads(done.stdout)["run"]
    assert document["profile"]["workload"]["seed"] == 5 and document["notes"] == []
    assert "note:" not in done.stderr


def test_the_configuration_that_a_sweep_recommends(folder: Path) -> None:
    swept = dstune(folder, "sweep", "chat.yaml", "--set", "arrivals={kind: all_at_once}", "--set",
                   "workload.num_requests=20", "--set", "search.precision=[bf16, int8]", "--set",
                   "budget.repetitions=1")  # fmt: skip
    assert swept.returncode == 0, swept.stderr
    run = only_run(folder)
    for name in (run.name, str(run / "recommended.yaml")):
        done = dstune(folder, "loadtest", "chat.yaml", "--duration", "5s", "--json", "--output",
                      "reports", "--recommended", name)  # fmt: skip
        (trial,) = json.loads(done.stdout)["trials"]
        assert trial["knobs"]["precision"] == "int8"


BAD = {
    "no profile": ([], "Missing argument 'profile'"),
    "missing profile": (["none.yaml"], "no such profile: none.yaml"),
    "two loads": (["chat.yaml", "--rate", "3", "--users", "2"], "give one of them"),
    "bad duration": (["chat.yaml", "--duration", "soon"], "--duration must be a time such as 90s"),
    "no duration": (["chat.yaml", "--duration", "0s"], "--duration must be longer than nothing"),
    "endless": (["chat.yaml", "--duration", "99999h"], "arrivals.duration: makes "),
    "no rate": (["chat.yaml", "--rate", "0"], "--rate 0"),
    "no users": (["chat.yaml", "--users", "0"], "--users 0"),
    "no processes": (["chat.yaml", "--processes", "0"], "Invalid value for '--processes'"),
    "offline": (["chat.yaml", "--set", "driver=offline"], "a load test goes over HTTP"),
    "bad target": (["chat.yaml", "--target", "ftp://x"], "target: must be embedded, "),
    "odd target": (["chat.yaml", "--target", "a: b"], "target: must be embedded, "),
    "no recommendation": (["chat.yaml", "--recommended", "nothing"], "no run called nothing"),
    "recommended elsewhere": (
        ["chat.yaml", "--target", URL, "--recommended", "nothing"],
        "--recommended cannot be applied to http",
    ),
    "no key": (["chat.yaml", "--api-key-file", "none"], "none cannot be read as a key"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_done_is_one_line_exit_2_and_no_run_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    arguments: list[str], message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as caught:
        main(["loadtest", *arguments])
    shown = capsys.readouterr()
    lines = shown.err.splitlines()
    assert (caught.value.code, shown.out, len(lines)) == (2, "", 1)
    assert lines[0].startswith("error: ") and message in lines[0]
    assert not (folder / "reports").exists()


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["loadtest", "--help"])
    assert caught.value.code == 0
    assert "dstune loadtest" in capsys.readouterr().out.split("Examples:")[1]
