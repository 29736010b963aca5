"""The parts of the GPU check that a CPU can run, so that a GPU's minutes are not lost to a slip."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from gpu import check
from gpu.engine_run import bytes_in_use, copy_bytes_per_s, run_shape
from gpu.equality import greedy_differences
from gpu.trace_run import decode_shares, faults, trace_summary

from dstune.architecture import published_shape

CPU = torch.device("cpu")


def test_greedy_text() -> None:
    assert greedy_differences(CPU, "cpu") == []


def test_shape_run() -> None:
    (found,) = run_shape(
        "tiny-deepseek", (2,), CPU, max_model_len=256, kv_cache_memory_bytes=32 << 20
    )
    assert found.batch == 2
    assert found.output_tokens_per_s > 0 and found.prefill_tokens_per_s > 0
    assert 0 < found.weight_share < 1


def test_a_traced_load_has_time_in_every_class() -> None:
    found = trace_summary()
    assert faults(found) == []
    assert sum(decode_shares(found).values()) == pytest.approx(1.0)


def test_bytes_in_use_counts_the_chosen_experts() -> None:
    shape = published_shape("deepseek-v2-lite")
    # 2.4 B parameters are active; the embedding's 0.2 B are looked up, not read
    assert bytes_in_use(shape, 1) == pytest.approx(2 * (2.66e9 - 0.21e9), rel=0.05)
    assert bytes_in_use(shape, 64) > 0.9 * 2 * (shape.num_parameters() - 0.3e9)


def test_copy_rate() -> None:
    assert copy_bytes_per_s(CPU, 1 << 22) > 0


def test_a_section_that_breaks_is_a_failure(tmp_path: Path) -> None:
    findings = check.Findings({})

    def engine(findings: check.Findings) -> None:
        raise RuntimeError("out of memory")

    check.timed(findings, engine)
    assert findings.failures == ["engine: RuntimeError: out of memory"]
    assert json.dumps(findings.seconds)


def test_every_goal_has_its_benches() -> None:
    """Names of benches and rules of goals belong together; a renamed bench would lose its goal."""
    from dstune.kernels.workbench import catalogue

    names = [one.id for one in catalogue.benches() if check.is_quick(one.id)]
    rows = [{"case": name, "copy_share": 0.5, "speedup": 1.5} for name in names]
    wanted = {goal.what: goal.wanted for row in rows for goal in check.kernel_goals(row)}
    for words, value in (
        ("paged_attention-decode-bf16-kv_bf16", 0.8), ("latent_attention-decode", 0.8),
        ("rms_norm-bf16-4096x2048", 0.85), ("apply_rope-bf16-halves-4096", 0.85),
        ("silu_and_mul-bf16-4096", 0.85), ("int8_weight_only-m8", 1.6),
        ("v2lite-t8-beside_loop", 2.0), ("v2lite-t32-beside_grouped_mm", 1.0),
    ):  # fmt: skip
        assert any(words in what and goal == value for what, goal in wanted.items()), words
    assert not check.Goal("a share", 0.5, 0.8).is_met
