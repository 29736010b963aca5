"""Verification: a wrong kernel, a forgotten output and a crash fail, and nothing else does."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from kernel_cases import CPU, REFERENCE, backend, crashing, forgetful, norm_case, wrong

from dstune.errors import UsageError
from dstune.kernels.select import Kernels
from dstune.kernels.workbench import verify as module
from dstune.kernels.workbench.poison import poisoned
from dstune.kernels.workbench.verify import Verification, prepare, seeded, verify


def run(kernels: Kernels, *cases: object) -> Verification:
    progress: list[tuple[str, int, int]] = []
    found = verify(
        cases or [norm_case()], kernels, REFERENCE, CPU,
        lambda *one: progress.append(one),
    )  # type: ignore[arg-type]  # fmt: skip
    assert progress[0] == ("verify", 0, len(cases) or 1)
    assert progress[-1] == ("verify", len(cases) or 1, len(cases) or 1)
    return found


def test_a_right_kernel_passes() -> None:
    found = run(backend(REFERENCE.rms_norm))
    assert found.passes and found.failed == []
    assert found.proofs[0].difference.error == 0.0


def test_a_wrong_kernel_fails_with_its_error() -> None:
    found = run(backend(wrong))
    assert not found.passes
    assert found.failed[0].difference.error == pytest.approx(0.01, rel=1e-3)
    assert found.failed[0].difference.limit == 1e-5


def test_an_output_that_was_not_written_fails() -> None:
    found = run(backend(forgetful))
    assert "8 of 24 elements are NaN" in found.failed[0].difference.problem


def test_a_crash_fails_its_case_and_the_others_still_run() -> None:
    calls = []

    def crashes_once(x, weight, eps):  # type: ignore[no-untyped-def]
        calls.append(x)
        return crashing(x, weight, eps) if len(calls) == 1 else REFERENCE.rms_norm(x, weight, eps)

    found = run(backend(crashes_once), norm_case("a"), norm_case("b"))
    assert [one.case for one in found.failed] == ["a"]
    assert found.failed[0].difference.problem == (
        "RuntimeError: an illegal memory access was encountered"
    )
    assert len(found.proofs) == 2


def test_nothing_proved_is_no_pass() -> None:
    found = run(backend(REFERENCE.rms_norm), norm_case(dtype=torch.bfloat16))
    assert not found.passes
    assert found.skipped == {"the interpreter's bf16 arithmetic is wrong": 1}


def test_the_cpu_backend_is_spared_what_it_lacks_and_nothing_else() -> None:
    cpu = replace(backend(REFERENCE.rms_norm, "cpu"), precisions=("fp32", "bf16", "int8"),
                  kv_dtypes=("fp32", "bf16", "int8"))  # fmt: skip
    names = ["int8-m1", "int8_weight_only-m1", "kv_fp16-block16", "kv_int8-block16"]
    cases = [norm_case(name) for name in names]
    cases += [norm_case("half", torch.float16), norm_case("bf16", torch.bfloat16)]
    cases += [norm_case("e4m3", needs_fp8=True)]
    found = run(cpu, *cases)
    assert [one.case for one in found.proofs] == ["int8-m1", "kv_int8-block16", "bf16"]
    assert found.skipped == {
        "backend cpu has no int8_weight_only": 1,
        "backend cpu has no fp16": 2,
        "backend cpu has no fp8": 1,
    }


def test_inputs_are_the_same_at_every_call() -> None:
    case = norm_case()
    first, second = seeded(case, CPU), seeded(case, CPU)
    assert torch.equal(first["x"], second["x"])
    assert first["x"] is not second["x"]
    assert not torch.equal(first["x"], seeded(norm_case("other"), CPU)["x"])


def test_fresh_memory_is_poisoned_only_inside() -> None:
    like = torch.ones(2)
    plain = torch.empty, torch.empty_like, torch.Tensor.new_empty
    with poisoned():
        for fresh in (torch.empty(2), torch.empty_like(like), like.new_empty(2)):
            assert fresh.isnan().all()
        assert (torch.empty(2, dtype=torch.int8) == -1).all()
        assert torch.empty(2, dtype=torch.float8_e4m3fn).float().isnan().all()
        assert torch.empty(2, device="meta").is_meta
    assert (torch.empty, torch.empty_like, torch.Tensor.new_empty) == plain


def test_prepare_refuses_backends_without_kernels() -> None:
    with pytest.raises(UsageError, match="choose triton or cpu"):
        prepare("reference")


def test_prepare_on_a_cpu_uses_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "device_at_hand", lambda: CPU)
    kernels, reference, device = prepare("triton")
    assert (kernels.backend, reference.backend, device) == ("triton", "reference", CPU)


def test_a_kernel_that_ends_the_process_leaves_its_case_behind() -> None:
    script = (
        "import ctypes, faulthandler, sys\n"
        "sys.path.insert(0, 'tests')\n"
        "from kernel_cases import CPU, REFERENCE, backend, norm_case\n"
        "from dstune.kernels.workbench.verify import prove\n"
        "faulthandler.enable()\n"
        "crash = backend(lambda x, weight, eps: ctypes.string_at(0))\n"
        "prove(norm_case('the-guilty-one'), crash, REFERENCE, CPU)\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True)
    assert done.returncode < 0
    assert "<case rms_norm-the-guilty-one>" in done.stderr
