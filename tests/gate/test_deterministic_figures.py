"""The project's own exact figures: the cheap ones are those of the committed baseline."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import deterministic_figures as script
import pytest

from dstune.gate.exact import read_exact
from dstune.kernels.workbench.compile import Compiled
from dstune.kernels.workbench.sass import Anatomy

BASELINE = Path(__file__).parents[2] / "reports" / "baselines" / "dstune.exact.json"


def family(name: str) -> dict[str, float]:
    figures = read_exact(BASELINE).figures
    return {key: value for key, value in figures.items() if key.split(".")[0] == name}


def test_tokens_per_step_are_as_accepted() -> None:
    assert script.scheduler_figures() == family("scheduler")


def test_kv_bytes_are_as_accepted() -> None:
    assert script.kv_figures() == family("kv_bytes_per_token")


def test_the_baseline_has_every_family_and_no_spill() -> None:
    for name in ("launches", "native_calls", "compiled"):
        assert family(name), f"no figures of {name}: make them with tests/deterministic_figures.py"
    spills = {name: value for name, value in family("compiled").items() if name.endswith("spills")}
    assert len(spills) >= 24 and set(spills.values()) == {0}, "a dozen benches on two GPUs"


def test_the_scripts_do_what_they_are_there_for() -> None:
    found = script.scheduler_figures()
    assert found["scheduler.chunked.step001"] == 64, "the budget is used up: 1 + 63 of 150"
    assert found["scheduler.whole.step001"] == 41, "the second prompt of 40 waited for a step"
    assert found["scheduler.preempted.preemptions"] == 1
    assert found["scheduler.shared_prefix.cached_tokens"] == 128, "64 tokens of two requests"
    assert found["scheduler.shared_prefix.step001"] == 1 + 16 + 6, "a decode and what is not shared"


@pytest.mark.parametrize(
    ("shape", "dtype", "num_bytes"),
    [
        ("llama-3-8b", "bf16", 2 * 32 * 8 * 128 * 2),  # K and V, layers, heads, width, bytes
        ("deepseek-v3", "bf16", 61 * (512 + 64) * 2),
        ("deepseek-v3", "int8", 61 * (512 + 4 + 64 * 2)),  # a scale; the rotary part stays bf16
    ],
)
def test_kv_bytes_by_hand(shape: str, dtype: str, num_bytes: int) -> None:
    assert script.kv_figures()[f"kv_bytes_per_token.{shape}.{dtype}"] == num_bytes


def test_the_engine_allocates_what_planning_counts_on() -> None:
    planned, allocated = family("kv_bytes_per_token"), family("kv_bytes_allocated")
    assert len(allocated) == 9, "three models in bf16, int8 and fp8"
    for name, num_bytes in allocated.items():
        assert planned[name.replace("allocated", "per_token")] == num_bytes


def compiled(registers: int, tile: str = "64", case: str = "linear-m1") -> Compiled:
    anatomy = Anatomy(registers, 2, 3, {}, 0, 0, 100)
    return Compiled(
        "sm_90", "_kernel", (case, "another"), 4, 3, {"BLOCK": tile}, 4096, 232_448, anatomy
    )


def test_compiled_kernels_are_named_whatever_finished_first() -> None:
    """Two versions of one kernel in a bench, one of another bench."""
    versions = [compiled(40), compiled(50, "128"), compiled(60, case="linear-m2")]
    found = script.compiled_counts(versions)
    assert found == {
        "compiled.sm_90.linear-m1.kernel.1.registers": 50,  # the tile "128" sorts before "64"
        "compiled.sm_90.linear-m1.kernel.1.spills": 5,
        "compiled.sm_90.linear-m1.kernel.1.shared_memory_bytes": 4096,
        "compiled.sm_90.linear-m1.kernel.2.registers": 40,
        "compiled.sm_90.linear-m1.kernel.2.spills": 5,
        "compiled.sm_90.linear-m1.kernel.2.shared_memory_bytes": 4096,
        "compiled.sm_90.linear-m2.kernel.registers": 60,
        "compiled.sm_90.linear-m2.kernel.spills": 5,
        "compiled.sm_90.linear-m2.kernel.shared_memory_bytes": 4096,
    }
    for seed in range(5):
        assert script.compiled_counts(random.Random(seed).sample(versions, 3)) == found
    twins = [compiled(40), replace(compiled(40), num_warps=8), compiled(44)]
    assert script.compiled_counts(twins) == script.compiled_counts(twins[::-1])


def test_native_calls_are_counted_and_the_library_comes_back() -> None:
    library = script.native.lib()
    found = script.native_figures()
    assert script.native.lib() is library
    assert found == family("native_calls")
    prefix = "native_calls.tiny-deepseek.bf16.decode_4"
    assert found[f"{prefix}.all"] == sum(found.values()) / 2


def test_views_and_allocations_are_no_operations() -> None:
    torch = script.torch
    x = torch.zeros(4, 6, device="meta")
    with script.Operations() as operations:
        x.view(6, 4).t()[1:].unsqueeze(0)
        torch.empty_like(x)
        assert operations.num == 0
        x.add_(1)
        (x @ x.t()).to(torch.float16)
    assert operations.num == 3
