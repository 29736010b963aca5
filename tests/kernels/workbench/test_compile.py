"""Ahead-of-time compilation: what fails, and what is read from the compiled code."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dstune.errors import UsageError
from dstune.kernels.device import SM_90
from dstune.kernels.workbench import sass
from dstune.kernels.workbench.compile import compile_cases, gpus_named

HERE = Path(__file__).parent


def compiled(*names: str, workers: int = 1) -> dict[str, Any]:
    """Compile cases of compiled_kernels.py in a process whose Triton is no interpreter."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parents[2])])
    done = subprocess.run(
        [sys.executable, str(HERE / "compiled_kernels.py"), str(workers), *names],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def everything() -> dict[str, Any]:
    return compiled("good", "same", "spill", "shared", "unknown", "raises", "fp8", workers=2)


def rows_of(everything: dict[str, Any], case: str) -> list[dict[str, Any]]:
    rows = [one for one in everything["rows"] if f"matmul-{case}" in one["cases"]]
    assert {one["arch"] for one in rows} == {"sm_80", "sm_90"}
    return rows


def test_a_good_kernel_passes_and_uses_the_tensor_cores(everything: dict[str, Any]) -> None:
    for row in rows_of(everything, "good"):
        assert row["failure"] == ""
        assert row["kinds"]["LDGSTS"] > 0  # alignment reached the compiler
        assert row["kinds"]["HGMMA" if row["arch"] == "sm_90" else "HMMA"] > 0
        assert 16 < row["registers"] < 255


def test_equal_launches_are_compiled_once(everything: dict[str, Any]) -> None:
    assert rows_of(everything, "good") == rows_of(everything, "same")
    assert rows_of(everything, "good")[0]["cases"][:2] == ["matmul-good", "matmul-same"]


def test_a_spill_fails(everything: dict[str, Any]) -> None:
    assert all("spills: " in one["failure"] for one in rows_of(everything, "spill"))


def test_too_much_shared_memory_fails(everything: dict[str, Any]) -> None:
    limits = {"sm_80": "of 166,912 bytes", "sm_90": "of 232,448 bytes"}
    for row in rows_of(everything, "shared"):
        assert "shared memory: " in row["failure"] and limits[row["arch"]] in row["failure"]


def test_what_does_not_compile_or_launch_fails(everything: dict[str, Any]) -> None:
    for row in rows_of(everything, "unknown"):
        assert "nowhere is not defined" in row["failure"]
    for row in rows_of(everything, "raises"):
        assert row["failure"] == "not launched: ValueError: no such tile"


def test_a_crash_of_the_compiler_is_laid_on_its_kernel_alone() -> None:
    found = compiled("crash", "good", workers=2)
    assert {one["failure"] for one in rows_of(found, "crash")} == {"the compiler crashed"}
    assert {one["failure"] for one in rows_of(found, "good")} == {""}


def test_fp8_waits_for_a_gpu_that_has_it(everything: dict[str, Any]) -> None:
    assert everything["skipped"] == {"sm_80 has no fp8": 1}
    assert [one["arch"] for one in everything["rows"] if "matmul-fp8" in one["cases"]] == ["sm_90"]


def test_no_compiler_under_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(UsageError, match="unset TRITON_INTERPRET"):
        compile_cases([], [SM_90], 1, lambda *_: None)


def test_architectures_by_name() -> None:
    assert gpus_named(["sm_90", "sm_90"]) == [SM_90]
    with pytest.raises(UsageError, match="choose from sm_80, sm_89, sm_90"):
        gpus_named(["sm_75"])


def test_sass_by_hand() -> None:
    text = """
 Function k:
  REG:40 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:400 TEXTURE:0 SURFACE:0 SAMPLER:0
        /*0000*/                   LDC R1, c[0x0][0x28] ;    /* 0x00000a00ff017b82 */
        /*0010*/              @!P0 LDG.E.128.CONSTANT R4, [R2.64] ;  /* 0x0 */
        /*0020*/               @P1 LDGSTS.E.BYPASS.128 [R0], [R2.64] ;  /* 0x0 */
        /*0030*/              @UP2 LDG.E R4, [R2.64] ;  /* 0x0 */
        /*0040*/                   STL.64 [R1], R4 ;  /* 0x0 */
        /*0050*/             @!UPT LDL R4, [R1] ;  /* 0x0 */
        /*0060*/                   HMMA.16816.F32 R4, R8, R12, R4 ;  /* 0x0 */
"""
    found = sass.read(text)
    assert (found.num_registers, found.num_instructions) == (40, 7)
    assert (found.num_spill_stores, found.num_spill_loads) == (1, 1)
    assert (found.num_loads, found.num_wide_loads) == (3, 2)
    assert found.kinds == {"HMMA": 1, "LDGSTS": 1}
    with pytest.raises(ValueError, match="no register count"):
        sass.read("nothing")
