"""The program from outside: exit codes, one-line errors, kills, and how fast it starts."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from dstune.cli.main import main

ROOT = Path(__file__).parents[2]
PROFILE = """
name: chat
scenario: low_latency
workload: {prompt_tokens: 20, output_tokens: 8, num_requests: 20}
slo: {tpot_p99_ms: 12}
search: {max_num_seqs: [2, 8], precision: [bf16, int8]}
budget: {repetitions: 1}
"""
ENV = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "NO_COLOR": "1"}


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


def trial_list(run: Path) -> list[tuple[str, str, object]]:
    lines = (run / "trials.jsonl").read_text().splitlines()
    return [(one["trial_id"], one["status"], one["knobs"]) for one in map(json.loads, lines)]


def test_a_sweep_ends_with_a_recommendation(folder: Path) -> None:
    done = dstune(folder, "sweep", "chat.yaml")
    assert done.returncode == 0, done.stderr
    assert "recommended for chat" in done.stdout
    assert "trial 1 of 5: default" in done.stderr
    assert (only_run(folder) / "recommended.yaml").is_file()
    bench = json.loads((only_run(folder) / "trials/t000/vllm_bench-0.json").read_text())
    assert bench["completed"] == 20


def test_json_is_one_document_and_progress_goes_to_stderr(folder: Path) -> None:
    done = dstune(folder, "sweep", "chat.yaml", "--json", "--output", "elsewhere")
    document = json.loads(done.stdout)
    assert document["recommendation"]["changed"]["precision"] == "int8"
    assert document["run"]["argv"] == ["sweep", "chat.yaml", "--json", "--output", "elsewhere"]
    assert Path(folder / document["folder"]).parent.name == "elsewhere"
    assert "trial 1 of 5" in done.stderr


def test_a_dry_run_starts_nothing(folder: Path) -> None:
    done = dstune(folder, "sweep", "chat.yaml", "--dry-run", "--set",
                  "search.max_num_batched_tokens=[4]")  # fmt: skip
    assert done.returncode == 0
    assert "t002" in done.stdout and "reload" in done.stdout
    assert "skipped max_num_seqs=8 max_num_batched_tokens=4" in done.stdout
    assert not (folder / "reports").exists()


def test_nothing_meets_the_slo_is_exit_1(folder: Path) -> None:
    done = dstune(folder, "sweep", "chat.yaml", "--set", "slo.tpot_p99_ms=0.1")
    assert done.returncode == 1
    assert "none of 5 configurations meets the SLO" in done.stdout


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    whole = tmp_path_factory.mktemp("whole")
    (whole / "chat.yaml").write_text(PROFILE)
    assert dstune(whole, "sweep", "chat.yaml").returncode == 0
    return only_run(whole)


@pytest.mark.parametrize("kill_at", [0, 5, 21])
def test_kill_9_and_resume_give_the_trials_of_an_uninterrupted_run(
    folder: Path, uninterrupted: Path, kill_at: int
) -> None:
    killed = dstune(folder, "sweep", "chat.yaml", when=str(kill_at))
    assert killed.returncode == -9
    run = only_run(folder)
    lines = (run / "trials.jsonl").read_bytes() if kill_at > 1 else b""
    with open(run / "trials.jsonl", "ab") as file:
        file.write(b'{"trial_id": "t0')  # as if it had been killed while writing, too
    resumed = dstune(folder, "sweep", "--resume", str(run))
    assert resumed.returncode == 0, resumed.stderr
    assert (run / "trials.jsonl").read_bytes().startswith(lines)
    assert trial_list(run) == trial_list(uninterrupted)
    assert (run / "recommended.yaml").is_file()


@pytest.mark.parametrize("how", ["int", "term"])
def test_an_interrupt_keeps_what_was_measured_and_says_how_to_go_on(folder: Path, how: str) -> None:
    done = dstune(folder, "sweep", "chat.yaml", when=f"{how}:5")
    assert done.returncode == 130
    run = only_run(folder)
    assert f"dstune sweep --resume {run.relative_to(folder)}" in done.stdout
    assert json.loads((run / "run.json").read_text())["status"] == "interrupted"
    assert len(trial_list(run)) == 2
    if how == "int":
        report = dstune(folder, "report", str(run), "--json")
        assert report.returncode == 0 and len(json.loads(report.stdout)["trials"]) == 2


def test_the_report_in_each_form(uninterrupted: Path) -> None:
    folder, name = uninterrupted.parents[1], uninterrupted.name
    assert "recommended for chat" in dstune(folder, "report", name).stdout
    assert dstune(folder, "report", name, "--format", "md").stdout.startswith("# chat: finished")
    assert dstune(folder, "report", name, "--format", "csv").stdout.startswith("trial_id,phase,")
    assert json.loads(dstune(folder, "report", name, "--format", "json").stdout)["trials"]


BAD = {
    "no profile": (["sweep"], "give a profile, or --resume RUN"),
    "missing profile": (["sweep", "none.yaml"], "no such profile: none.yaml"),
    "typo": (["sweep", "chat"], "did you mean chat.yaml?"),
    "bad set": (
        ["sweep", "chat.yaml", "--set", "slo.ttft=3"],
        "--set slo.ttft=3: slo.ttft: ",
    ),
    "bad budget": (["sweep", "chat.yaml", "--budget", "soon"], "budget.wall: must be a time"),
    "bad driver": (["sweep", "chat.yaml", "--driver", "pipe"], "driver: must be http or offline"),
    "bad trials": (["sweep", "chat.yaml", "--trials", "0"], "budget.trials: must be at least 1"),
    "no run": (["report", "nothing"], "no run called nothing"),
    "resume nothing": (["sweep", "--resume", "nothing"], "no run called nothing"),
    "resume and more": (
        ["sweep", "--resume", "x", "--trials", "3"],
        "brings the run's own",
    ),
    "unknown option": (["sweep", "--foo"], "No such option"),
    "unknown verb": (["swep"], "Did you mean 'sweep'?"),
    "bad format": (["knobs", "--format", "xml"], "--format must be table, md or json"),
    "not a number": (["sweep", "chat.yaml", "--trials", "many"], "Invalid value for '--trials'"),
}


def inside(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, list[str]]:
    """The program in this process: its exit code, its output, and the lines of its errors."""
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    captured = capsys.readouterr()
    assert isinstance(caught.value.code, int)
    return caught.value.code, captured.out, captured.err.splitlines()


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_done_is_one_line_and_exit_2(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    arguments: list[str], message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(folder)
    code, out, lines = inside(capsys, *arguments)
    assert (code, out, len(lines)) == (2, "", 1)
    assert lines[0].startswith("error: ") and message in lines[0]


def test_several_errors_of_a_profile_are_a_line_each(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, lines = inside(capsys, "sweep", str(folder / "chat.yaml"), "--set", "nme=x", "--set",
                            "knobs={blok_size: 3, precision: fp7}")  # fmt: skip
    assert code == 2
    assert [line[:7] for line in lines] == ["error: "] * 3


def test_help_has_an_example_for_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("sweep", "report", "knobs"):
        code, out, _ = inside(capsys, verb, "--help")
        assert code == 0 and f"dstune {verb}" in out.split("Examples:")[1]
    assert inside(capsys)[0] == 2
    assert inside(capsys, "--version")[1].startswith("dstune ")


def test_the_knobs_in_each_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert "max_num_seqs" in inside(capsys, "knobs")[1]
    assert inside(capsys, "knobs", "--format", "md")[1].startswith("| knob |")
    assert json.loads(inside(capsys, "knobs", "--json")[1])[0]["knob"] == "max_num_seqs"


def test_an_unforeseen_error_is_one_line_and_a_file(folder: Path) -> None:
    done = dstune(folder, "sweep", "chat.yaml", when="crash:")
    assert done.returncode == 5
    last = done.stderr.rstrip("\n").split("\n")[-1]
    assert last.startswith("error: dstune failed unexpectedly: RuntimeError: this was not foreseen")
    (log,) = folder.glob("dstune-crash-*.log")
    assert "Traceback" in log.read_text()
    shown = dstune(folder, "sweep", "chat.yaml", "--debug", when="crash:")
    assert "Traceback" in shown.stderr


def test_help_starts_fast_and_imports_nothing_heavy() -> None:
    program = (
        "import sys; from dstune.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'triton', 'numpy', 'pandas', 'scipy', 'pydantic', 'pyarrow', 'yaml'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )

    def cpu_s() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", program], check=True, env=ENV, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(cpu_s() for _ in range(4)) < 0.3
