"""dstune gate from outside: one clear line and the right exit code for everything that is wrong."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeTarget
from measured import ENVIRONMENT, PROFILE, Bank, profile, rename

from dstune.cli.gate import carry_out
from dstune.cli.main import main
from dstune.gate.plan import GateSetting
from dstune.gate.sides import Side

Gate = Callable[..., tuple[int, str, str]]


@pytest.fixture
def gate(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Gate:
    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["gate", *map(str, arguments), "--output", str(tmp_path)])
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    return run


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    return Bank(tmp_path)


def one_line(err: str) -> str:
    """The error; notes may come before it."""
    *notes, last = err.strip().split("\n")
    assert all(one.startswith("note: ") for one in notes) and last.startswith("error: "), err
    return last


def vllm_results(folder: Path, factor: float = 1.0, **changes: object) -> Path:
    """Five results as `vllm bench serve --save-result` writes them, in turns by their dates."""
    folder.mkdir()
    minute = 0 if "before" in folder.name else 1
    for number, noise in enumerate((1.0, 1.01, 0.99, 1.005, 0.995)):
        one = factor * noise
        result = {
            "date": f"20260101-00{10 + 2 * number + minute}00", "backend": "openai",
            "model_id": "m", "num_prompts": 100, "max_concurrency": None, "request_rate": 4.0,
            "duration": 25.0 * one,
            "completed": 100, "failed": 0, "total_input_tokens": 12800,
            "total_output_tokens": 6400, "request_throughput": 4.0 / one,
            "output_throughput": 256.0 / one, "total_token_throughput": 768.0 / one,
            **{f"{how}_{what}_ms": 50.0 * one for what in ("ttft", "tpot", "itl", "e2el")
               for how in ("mean", "median", "std", "p95", "p99")},
            **changes,
        }  # fmt: skip
        (folder / f"run{number}.json").write_text(json.dumps(result))
    return folder


def test_two_folders_of_another_tool_get_the_same_verdicts(gate: Gate, tmp_path: Path) -> None:
    before = vllm_results(tmp_path / "before")
    code, out, _ = gate(
        "--baseline", before, "--candidate", vllm_results(tmp_path / "after", 1.25),
        "--junit", tmp_path / "gate.xml",
    )  # fmt: skip
    assert code == 1 and "ttft_p50_ms is 25.0% slower (at least 2" in out
    suite = ET.parse(tmp_path / "gate.xml").getroot()
    assert len(suite.findall(".//failure")) == 4
    same = vllm_results(tmp_path / "same", 1.001)
    code, out, _ = gate("--baseline", before, "--candidate", same, "--json")
    assert code == 0 and json.loads(out)["claim"] == "pass"


def test_an_empty_folder(gate: Gate, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, _, err = gate("--baseline", tmp_path / "empty")
    assert code == 2 and "empty is empty" in one_line(err)


def test_a_missing_metric(gate: Gate, tmp_path: Path) -> None:
    before = vllm_results(tmp_path / "before")
    after = vllm_results(tmp_path / "after", 1.001)
    for path in after.iterdir():
        kept = {key: one for key, one in json.loads(path.read_text()).items() if "tpot" not in key}
        path.write_text(json.dumps(kept))
    code, _, err = gate("--baseline", before, "--candidate", after)
    assert code == 4 and "no value of tpot" in one_line(err) and "--metric" in err
    code, _, _ = gate(
        "--baseline", before, "--candidate", after, "--metric", "ttft_p50_ms",
    )  # fmt: skip
    assert code == 0


def test_all_requests_failed(gate: Gate, tmp_path: Path) -> None:
    before = vllm_results(tmp_path / "before")
    after = vllm_results(tmp_path / "after", completed=0, failed=100)
    code, _, err = gate("--baseline", before, "--candidate", after)
    assert code == 4 and "failed" in one_line(err)


def test_another_model_of_another_tool(gate: Gate, tmp_path: Path) -> None:
    before = vllm_results(tmp_path / "before")
    after = vllm_results(tmp_path / "after", model_id="n")
    code, _, err = gate("--baseline", before, "--candidate", after)
    assert code == 4 and "model m / n" in one_line(err)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"total_input_tokens": 25600}, "workload.prompt_tokens_mean 128.0 / 256.0"),
        ({"total_output_tokens": 640}, "workload.output_tokens_mean 64.0 / 6.4"),
        ({"max_concurrency": 4}, "workload.concurrency unlimited / 4"),
        ({"request_rate": 8.0}, "workload.request_rate 4.0 / 8.0"),
    ],
)
def test_another_load_of_another_tool(
    gate: Gate, tmp_path: Path, change: dict[str, object], says: str
) -> None:
    before = vllm_results(tmp_path / "before")
    after = vllm_results(tmp_path / "after", **change)
    code, _, err = gate("--baseline", before, "--candidate", after)
    assert code == 4 and says in one_line(err)


def test_every_reader_is_told_that_there_is_no_verdict(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    before = vllm_results(tmp_path / "before")
    after = vllm_results(tmp_path / "after", model_id="n")
    code, out, err = gate(
        "--baseline", before, "--candidate", after, "--json", "--junit", tmp_path / "gate.xml"
    )
    found = json.loads(out)
    assert (code, found["exit_code"], found["claim"]) == (4, 4, None)
    assert "::error title=dstune gate::no verdict" in err
    assert "no verdict: not comparable" in (tmp_path / "summary.md").read_text()
    assert len(ET.parse(tmp_path / "gate.xml").getroot().findall(".//error")) == 1


def test_exact_figures_reach_every_reader_too(gate: Gate, tmp_path: Path) -> None:
    for name, value in (("before", 3), ("after", 4)):
        figures = {"kind": "exact", "name": "x", "environment": {}, "figures": {"launches": value}}
        (tmp_path / f"{name}.json").write_text(json.dumps(figures))
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    code, out, _ = gate("--baseline", before, "--candidate", after, "--junit", tmp_path / "x.xml")
    assert code == 1 and "launches" in out
    assert len(ET.parse(tmp_path / "x.xml").getroot().findall(".//failure")) == 1
    code, _, err = gate("--baseline", before, "--candidate", after, "--set", "max_num_seqs=4")
    assert code == 2 and "exact figures are compared as they are: leave --set" in one_line(err)


def test_results_that_are_there_start_nothing_and_are_no_copies(gate: Gate, tmp_path: Path) -> None:
    before, after = vllm_results(tmp_path / "before"), vllm_results(tmp_path / "after", 1.01)
    code, _, err = gate("--baseline", before, "--candidate", after, "--baseline-revision", "main")
    assert code == 2 and "leave --baseline-revision away" in one_line(err)
    code, _, err = gate("--baseline", before, "--candidate", before)
    assert code == 2 and "the very same figures" in one_line(err)
    twice = ("--baseline", before, "--baseline", before, "--candidate", after, "--stored")
    code, _, err = gate(*twice)
    assert code == 2 and "name every session once" in one_line(err)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"gpus": ["NVIDIA H100, 81559 MiB, 550.1"]}, "GPU"),
        ({"cpu": {**ENVIRONMENT["cpu"], "model": "Other"}}, "CPU Fake 9000 / Other"),
    ],
)
def test_another_machine(gate: Gate, bank: Bank, change: dict[str, object], says: str) -> None:
    before = bank.sweep(profile())
    after = bank.sweep(profile(), **change)
    code, _, err = gate("--baseline", before.path, "--candidate", after.path, "--stored")
    assert code == 4 and says in one_line(err)


def test_a_run_of_another_machine_is_not_measured_again_here(gate: Gate, bank: Bank) -> None:
    run = bank.sweep(profile())
    code, _, err = gate("--baseline", run.path, "--set", "max_num_seqs=4")
    assert code == 4 and "measured on another machine (then / now): CPU" in one_line(err)


def test_another_model_or_precision(
    gate: Gate, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dstune.measure.fingerprint.fingerprint", lambda: ENVIRONMENT)
    before = bank.sweep(profile())
    other = bank.sweep(profile("model=other.gguf"), FakeTarget(bank.clock, digest="other"))
    code, _, err = gate("--baseline", before.path, "--candidate", other.path)
    assert code == 4 and "model: tiny-deepseek and other.gguf" in one_line(err)
    code, _, err = gate("--baseline", before.path, "--candidate", other.path, "--stored")
    assert code == 4 and "model" in one_line(err)
    int8 = bank.sweep(profile("knobs.precision=int8"))
    for more in ([], ["--stored"]):
        code, _, err = gate("--baseline", before.path, "--candidate", int8.path, *more)
        assert code == 4 and "precision" in one_line(err)


def test_a_corrupted_baseline(gate: Gate, bank: Bank, tmp_path: Path) -> None:
    code, out, _ = gate("accept", bank.sweep(profile()).path)
    assert code == 0
    (path,) = (tmp_path / "baselines" / "chat").glob("*.json")
    assert str(path) in out
    path.write_text(path.read_text().replace('"num_ok": 12', '"num_ok": 13'))
    code, _, err = gate("--baseline", "chat", "--stored")
    assert code == 2 and "damaged" in one_line(err) and str(path) in err


def test_one_run_only(gate: Gate, bank: Bank, tmp_path: Path) -> None:
    before, after = bank.sweep(profile()), bank.sweep(profile())
    code, out, _ = gate("--baseline", before.path, "--candidate", after.path, "--stored", "--json")
    found = json.loads(out)
    assert code == 3 and found["is_advisory"] and found["message"].startswith("advisory: inconcl")
    single = vllm_results(tmp_path / "before")
    for path in sorted(single.iterdir())[1:]:
        path.unlink()
    many = vllm_results(tmp_path / "after")
    code, _, err = gate("--baseline", single, "--candidate", many)
    assert code == 2 and "too few pairs of runs, 1" in one_line(err)


def test_options_that_make_no_sense_together(gate: Gate, tmp_path: Path) -> None:
    assert "give --baseline" in one_line(gate()[2])
    for arguments, says in (
        (["--margin", "x"], "--margin must be a share such as 3% or 0.03, not 'x'"),
        (["--budget", "x"], "--budget"),
        (["--metric", "speed"], "metric 'speed' cannot be gated"),
        (["--baseline", "other"], "several baselines go with --stored"),
        (["--baseline-revision", "main", "--baseline-url", "http://x"], "has no revision"),
        (["--candidate-command", "serve"], "as {port}"),
        (["--baseline-url", "notaurl"], "'notaurl' is no URL: write http://HOST:PORT"),
        (["--candidate-url", "http://x", "--set", "max_num_seqs=4"], "--set turns knobs of"),
        (["--margin", "1%", "--min-effect", "5%"], "--margin 1% must be above --min-effect 5%"),
        (["--stored", "--baseline-url", "http://x"], "--stored starts no baseline"),
    ):
        code, _, err = gate("--baseline", "profiles/quickstart.yaml", *arguments)
        assert code == 2 and says in one_line(err), (arguments, err)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def fake_engine(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every side of a gate is a fake target, the candidate of which is slower from 30 seqs on."""

    def open_side(side: Side, *_: object) -> FakeTarget:
        slowdown = 0.5 if side.knobs["max_num_seqs"] == 30 else 0.0
        return FakeTarget(bank.clock, slowdown=slowdown)

    def setting(*arguments: Any) -> GateSetting:
        made = carry_out_setting(*arguments)
        return replace(made, clock_ns=bank.clock.now_ns, read_cpu=bank.clock.read_cpu)

    carry_out_setting = carry_out.gate_setting
    monkeypatch.setattr(Side, "open", open_side)
    monkeypatch.setattr(carry_out, "gate_setting", setting)


@pytest.mark.usefixtures("fake_engine")
def test_a_whole_gate_from_a_profile(gate: Gate, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(PROFILE)
    same, slower = ["--set", "block_size=32"], ["--set", "max_num_seqs=30", "--no-trace"]
    code, out, err = gate("--baseline", path, *same)
    assert code == 0 and "PASS: no metric is slower" in out
    assert "pair 1 of at most 12" in err and "dstune gate calibrate tells" in err
    code, out, _ = gate("--baseline", path, *slower, "--json")
    found = json.loads(out)
    assert code == 1 and found["claim"] == "fail" and found["num_pairs"] == 5
    folder = Path(found["baseline"]["source"])
    assert json.loads((folder / "gate.json").read_text()) == found
    code, _, err = gate("--baseline", path, "--profile-set", "workload.seed=x", *same)
    assert code == 2 and "workload.seed" in one_line(err)


@pytest.mark.usefixtures("fake_engine")
def test_calibration_adds_up_and_tells_the_next_gate(gate: Gate, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(PROFILE)
    assert gate("calibrate", path, "--comparisons", 2)[0] == 0
    code, out, _ = gate("calibrate", path, "--json")
    found = json.loads(out)
    assert code == 0 and (found["num_comparisons"], found["num_false_alarms"]) == (3, 0)
    assert found["metrics"]["ttft_p50_ms"] == {"pair_sd": 0.0, "num_pairs": 15}
    _, _, err = gate("--baseline", path, "--set", "block_size=32")
    assert "on this host two runs of the same thing differ by 0.0%" in err


@pytest.mark.usefixtures("fake_engine")
def test_the_present_against_accepted_sessions(
    gate: Gate, bank: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dstune.measure.fingerprint.fingerprint", lambda: ENVIRONMENT)
    for name, slowdown in (("one", 0.0), ("two", 0.01), ("three", 0.02)):
        target = FakeTarget(bank.clock, slowdown=slowdown)
        run = rename(bank.loadtest(profile("search={}"), target), name)
        assert gate("accept", run.path)[0] == 0
    code, out, err = gate("--baseline", "chat", "--stored", "--json")
    found = json.loads(out)
    assert code == 0 and found["is_advisory"], err
    assert sorted(found["earlier"]) == ["one", "three", "two"] and found["method"] == "stored"
    code, out, _ = gate("--baseline", "chat", "--stored", "--set", "max_num_seqs=30")
    assert code == 1 and "advisory" in out


@pytest.mark.usefixtures("fake_engine")
def test_an_interrupt_before_the_first_pair_says_so(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "p.yaml"
    path.write_text(PROFILE)
    monkeypatch.setattr(FakeTarget, "run", interrupted)
    code, _, err = gate("--baseline", path, "--set", "block_size=32")
    assert code == 130 and err.strip().endswith("error: interrupted")
    (folder,) = tmp_path.glob("*-gate-chat")
    assert json.loads((folder / "run.json").read_text())["status"] == "interrupted"
