"""dstune kernels from outside: exit codes, one-line errors, and JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kernel_cases import REFERENCE, backend, norm_case, wrong

from dstune.cli.main import main
from dstune.kernels.workbench import bench as bench_module
from dstune.kernels.workbench import catalogue
from dstune.kernels.workbench import tune as tune_module
from dstune.kernels.workbench import verify as verify_module
from dstune.kernels.workbench.timing import CpuTimer

ROOT = Path(__file__).parents[2]


def dstune(*arguments: str, interpret: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    if interpret is not None:
        environment["TRITON_INTERPRET"] = interpret
    environment |= {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "dstune", "kernels", *arguments],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip


def inside(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run in this process, where cases and backends can be replaced."""
    with pytest.raises(SystemExit) as ended:
        main(["kernels", *arguments])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.fixture
def two_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """One case that is fp32 and one that the interpreter cannot do."""
    import torch

    cases = [norm_case(), norm_case("half", torch.bfloat16)]
    monkeypatch.setattr(catalogue, "checks", lambda only: cases)
    monkeypatch.setattr(catalogue, "benches", lambda only: cases[:1])


def use(monkeypatch: pytest.MonkeyPatch, kernels: Any) -> None:
    import torch

    cpu = torch.device("cpu")
    timer = CpuTimer(budget_s=0.01)
    monkeypatch.setattr(verify_module, "prepare", lambda name: (kernels, REFERENCE, cpu))
    monkeypatch.setattr(bench_module, "prepare", lambda: (kernels, REFERENCE, cpu, timer))


@pytest.mark.usefixtures("two_cases")
def test_verify_passes_and_says_what_it_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, backend(REFERENCE.rms_norm))
    code, out, _ = inside(capsys, "verify")
    assert code == 0
    assert "backend triton on cpu: 1 of 1 cases right" in out
    assert "skipped 1 cases: the interpreter's bf16 arithmetic is wrong" in out


@pytest.mark.usefixtures("two_cases")
def test_a_wrong_kernel_is_exit_1_with_its_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, backend(wrong))
    code, out, _ = inside(capsys, "verify")
    assert code == 1
    assert "FAIL rms_norm-d8: error 0.01 where 1e-05 is allowed" in out
    code, out, _ = inside(capsys, "verify", "--json")
    document = json.loads(out)
    assert code == 1 and document["num_failed"] == 1 and not document["passes"]
    assert document["cases"][0]["error"] == pytest.approx(0.01, rel=1e-3)
    assert document["skipped"] == {"the interpreter's bf16 arithmetic is wrong": 1}


@pytest.mark.usefixtures("two_cases")
def test_bench_times_what_is_right_and_refuses_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, backend(REFERENCE.rms_norm, "cpu"))
    code, out, _ = inside(capsys, "bench", "--json")
    document = json.loads(out)
    assert code == 0 and document["cases"][0]["ours"]["median_s"] > 0
    assert document["ceilings"]["copy_bytes_per_s"] > 1e8
    use(monkeypatch, backend(wrong, "cpu"))
    code, out, _ = inside(capsys, "bench")
    assert code == 1
    assert "not timed" in out and "FAIL rms_norm-d8: wrong: error 0.01" in out


@pytest.mark.usefixtures("two_cases")
def test_predictions_run_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = inside(capsys, "bench", "--predict", "h200")
    assert code == 0 and "nothing was run" in out
    code, out, _ = inside(capsys, "bench", "--predict", "H200", "--json")
    document = json.loads(out)
    assert document["was_run"] is False
    assert document["cases"][0]["cost"] == {"num_bytes": 192, "num_flops": 96}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("verify", "--only", "nosuchthing"), "the folders are norm"),
        (("verify", "--backend", "reference"), "choose triton or cpu"),
        (("compile", "--arch", "sm_75"), "choose from sm_80, sm_89, sm_90"),
        (("bench", "--predict", "T4"), "choose from A100-80G"),
    ],
)
def test_usage_errors_are_one_line_with_the_fix(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = inside(capsys, *arguments)
    assert code == 2
    (line,) = [one for one in err.splitlines() if one.startswith("error: ")]
    assert message in line


def test_verify_and_compile_for_real() -> None:
    done = dstune("verify", "--only", "norm/rms_norm", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["passes"] and document["backend"] == "triton"
    done = dstune("compile", "--arch", "sm_90", "--only", "norm/rms_norm")
    assert done.returncode == 0, done.stderr
    assert "sm_90" in done.stdout and "0 failed" in done.stdout


def test_compile_under_the_interpreter_says_to_unset_it() -> None:
    done = dstune("compile", "--only", "norm/rms_norm", interpret="1")
    assert done.returncode == 2
    assert "unset TRITON_INTERPRET" in done.stderr


def test_tune_writes_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dstune.architecture import PUBLISHED
    from dstune.kernels.experts.tiles import Tile, TileKey, TileTable

    asked = []

    def tune(shape: Any, precision: str, device: Any, report: Any) -> TileTable:
        asked.append((shape.moe.num_experts, precision))
        report("1 tokens: 16x64x128", 1, 1)
        key = TileKey(shape.moe.num_experts, shape.moe.intermediate_size, "GPU", precision)
        return TileTable({key: {1: Tile(16, 64, 128, 1, 4, 3)}})

    monkeypatch.setattr(tune_module, "tune", tune)
    path = tmp_path / "tiles.json"
    code, out, _ = inside(capsys, "tune", "--precision", "int8", "--output", str(path))
    assert code == 0 and asked == [(64, "int8")]
    assert "16 x 64 x 128" in out and "tiles.json" in out
    config = {**PUBLISHED["deepseek-v2-lite"], "n_routed_experts": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, out, _ = inside(capsys, "tune", "--model", str(tmp_path), "--output", str(path), "--json")
    assert code == 0 and json.loads(out)["entries"][0]["num_experts"] == 8
    keys = TileTable.load(path).entries
    assert sorted((one.num_experts, one.precision) for one in keys) == [(8, "bf16"), (64, "int8")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "nosuch"), "known are tiny-deepseek, deepseek-v2-lite"),
        (("--model", "{folder}"), "broken JSON"),
        (("--model", "llama-3-8b"), "has no routed experts"),
        ((), "tiles are measured on a CUDA device"),
    ],
)
def test_tune_says_what_it_needs(
    arguments: tuple[str, ...], message: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    import torch

    monkeypatch.setattr(verify_module, "device_at_hand", lambda: torch.device("cpu"))
    (tmp_path / "config.json").write_text("{")
    given = [one.replace("{folder}", str(tmp_path)) for one in arguments]
    code, _, err = inside(capsys, "tune", *given, "--output", str(tmp_path / "tiles.json"))
    assert code == 2 and message in err
    assert not (tmp_path / "tiles.json").exists()


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("verify", "compile", "bench", "tune"):
        code, out, _ = inside(capsys, verb, "--help")
        assert code == 0 and f"dstune kernels {verb}" in out
