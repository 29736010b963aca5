"""`dstune trace` and `dstune trace diff` in front of a fake target: output, exit codes, errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from traced import FakeTracedTarget

import dstune.load.corpus
import dstune.tune.trace
from dstune.cli.main import main
from dstune.measure.trace_files import REST_FILE, STEPS_FILE

from fakes import TEXT  # isort: skip

PROFILE = """
name: chat
workload: {prompt_tokens: 20, output_tokens: 8, num_requests: 6}
arrivals: {kind: poisson, rate_per_s: 10}
knobs: {max_num_seqs: 8}
"""

Run = Callable[..., int]


@pytest.fixture
def targets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[FakeTracedTarget]:
    """The targets to open, first one last; without any a plain one."""
    stock: list[FakeTracedTarget] = []
    monkeypatch.setattr(
        dstune.tune.trace, "open_traced", lambda *_: stock.pop() if stock else FakeTracedTarget()
    )
    monkeypatch.setattr(dstune.load.corpus, "corpus_text", lambda: TEXT)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat.yaml").write_text(PROFILE)
    return stock


@pytest.fixture
def run(targets: list[FakeTracedTarget]) -> Run:
    def call(*arguments: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main(["trace", *arguments])
        assert isinstance(ended.value.code, int)
        return ended.value.code

    return call


Captured = pytest.CaptureFixture[str]


def newest() -> str:
    return max(Path("reports").iterdir(), key=lambda one: one.stat().st_mtime_ns).name


def test_a_trace_prints_its_tables_and_leaves_its_files(run: Run, capsys: Captured) -> None:
    assert run("chat.yaml") == 0
    out, err = capsys.readouterr()
    assert "decode: 12 steps of" in out and "latent_attention" in out
    folder = Path("reports") / newest()
    assert folder.name.endswith("-trace-chat")
    assert f"written to {folder}" in out and f"chat: trace; run folder {folder}" in err
    events = json.loads((folder / "timeline.json").read_text())["traceEvents"]
    assert sum(one.get("cat") == "step" for one in events) == 12
    assert {STEPS_FILE, REST_FILE, "run.json"} <= {one.name for one in folder.iterdir()}


def test_report_prints_a_trace_again(run: Run, capsys: Captured) -> None:
    assert run("chat.yaml") == 0
    capsys.readouterr()
    for name in (newest(), "interrupted"):
        if name == "interrupted":
            (Path("reports") / newest() / REST_FILE).unlink()
        with pytest.raises(SystemExit) as ended:
            main(["report", newest()])
        assert ended.value.code == 0
        out = capsys.readouterr().out
        assert "finished: 12 steps of 3 loads were traced" in out
        assert ("decode: 12 steps of" in out) is (name != "interrupted")


def test_options_reach_the_trace(run: Run, capsys: Captured) -> None:
    assert run("chat.yaml", "--closed", "--repeat", "4", "--steps", "2", "--backend", "reference",
               "--set", "knobs.max_num_seqs=3", "--json") == 0  # fmt: skip
    document = json.loads(capsys.readouterr().out)
    assert document["summary"]["timeline"]["num_steps"] == 8
    profile = document["run"]["profile"]
    assert profile["arrivals"] == {"kind": "concurrency", "concurrency": 3}
    assert profile["driver"] == "offline" and profile["knobs"]["backend"] == "reference"
    assert document["summary"]["facts"]["load"] == "closed loop"


def test_without_a_profile_a_small_load_is_traced(run: Run, capsys: Captured) -> None:
    assert run("--target", "embedded", "--set", "workload.num_requests=4") == 0
    assert newest().endswith("-trace-embedded")


def test_diff_names_the_slower_operation(
    run: Run, targets: list[FakeTracedTarget], capsys: Captured
) -> None:
    targets += [FakeTracedTarget(attention_us=250.0), FakeTracedTarget()]
    names = []
    for _ in range(2):
        assert run("chat.yaml", "--closed") == 0
        names.append(newest())
    capsys.readouterr()
    assert run("diff", *names) == 0
    assert "latent_attention explains 100%" in capsys.readouterr().out.split("\n")[0]
    assert run("diff", *names, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["first"] == "latent_attention"
    assert run("diff", *(f"reports/{one}" for one in names), "--format", "md") == 0
    assert "| **latent_attention** |" in capsys.readouterr().out
    for one in names:
        (Path("reports") / one / "run.json").unlink()
    assert run("diff", *(f"reports/{one}" for one in names)) == 0, "a folder with a trace will do"


def test_an_interrupt_keeps_and_shows_what_was_recorded(
    run: Run, targets: list[FakeTracedTarget], capsys: Captured
) -> None:
    targets.append(FakeTracedTarget(interrupts_at_run=2))
    assert run("chat.yaml") == 130
    assert "what is kept: 4 steps of 1 load were traced" in capsys.readouterr().out
    assert (Path("reports") / newest() / "timeline.json").is_file()
    targets.append(FakeTracedTarget(interrupts_at_run=0))
    assert run("chat.yaml") == 130
    assert capsys.readouterr().out == "interrupted before anything was recorded\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "give a profile, or --target embedded"),
        (("none.yaml",), 2, "no such profile"),
        (("chat.yaml", "--target", "vllm"), 2, "only target: embedded can be traced, not vllm"),
        (("--target", "http://127.0.0.1:1"), 2, "nsys"),
        (("chat.yaml", "--closed", "--driver", "http"), 2, "leave --driver away"),
        (("chat.yaml", "--steps", "0"), 2, "dstune trace --help"),
        (("chat.yaml", "--recommended", "none"), 2, "no run called none"),
        (("diff", "a", "b"), 2, "no run called a"),
        (("diff", "a"), 2, "see dstune trace diff --help"),
        (("diff", "a", "b", "--format", "csv"), 2, "--format must be"),
    ],
)
def test_what_is_wrong_is_one_line(
    run: Run, capsys: Captured, arguments: tuple[str, ...], code: int, said: str
) -> None:
    assert run(*arguments) == code
    err = capsys.readouterr().err
    assert err.startswith("error: ") and said in err and err.count("\n") == 1
    assert not Path("reports").exists()


def test_diff_of_something_else_is_not_comparable(run: Run, capsys: Captured) -> None:
    assert run("chat.yaml") == 0
    first = newest()
    assert run("chat.yaml", "--set", "workload.seed=7") == 0
    capsys.readouterr()
    assert run("diff", first, newest()) == 4
    assert "another workload" in capsys.readouterr().err
    (Path("reports") / first / REST_FILE).unlink()
    assert run("diff", first, newest()) == 2
    assert "holds no trace" in capsys.readouterr().err


def test_help_shows_the_options_and_names_diff(run: Run, capsys: Captured) -> None:
    assert run("--help") == 0
    out = capsys.readouterr().out
    assert "--closed" in out and "dstune trace diff" in out
    assert run("diff", "--help") == 0
    assert "--format" in capsys.readouterr().out
