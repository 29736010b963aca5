"""Tuning with a scripted timer: the fastest of the tiles that compute what they should."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from dstune.architecture import ModelShape, shape_from_config
from dstune.errors import DstuneError, UsageError
from dstune.kernels.device import TARGETS
from dstune.kernels.experts.tiles import Tile, TileKey
from dstune.kernels.experts.triton import TritonExperts
from dstune.kernels.workbench import tune as module
from dstune.kernels.workbench.timing import Call, Times
from dstune.kernels.workbench.tune import candidates, tune

CPU = torch.device("cpu")
interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="tensors of the CPU")
TILES = [Tile(16, 32, 32, 1, 4, 2), Tile(16, 64, 32, 1, 4, 3), Tile(32, 32, 32, 1, 4, 2)]


class ScriptedTimer:
    """Says that each function takes the next of these times, and runs it once."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = seconds

    def time(self, calls: Mapping[str, Call]) -> dict[str, Times]:
        for call in calls.values():
            call()
        return {
            name: Times(seconds, seconds, seconds, 1, "script")
            for name, seconds in zip(calls, self.seconds, strict=True)
        }


def shape() -> ModelShape:
    """A model with 6 experts of 24, top 2."""
    config = {
        "model_type": "deepseek_v2", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 48,
        "moe_intermediate_size": 24, "n_routed_experts": 6, "n_shared_experts": 1,
        "num_experts_per_tok": 2, "first_k_dense_replace": 1, "kv_lora_rank": 16,
        "q_lora_rank": None, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 128, "rope_theta": 10000.0,
        "norm_topk_prob": False, "routed_scaling_factor": 1.0, "scoring_func": "softmax",
        "topk_method": "greedy", "n_group": 1, "topk_group": 1,
    }  # fmt: skip
    return shape_from_config(config, "toy")


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "candidates", lambda *_: iter(TILES))


@interpreted
@pytest.mark.usefixtures("three")
def test_the_fastest_tile_is_kept() -> None:
    reports: list[tuple[str, int, int]] = []
    table = tune(shape(), "fp32", CPU, lambda *one: reports.append(one),
                 ScriptedTimer(3.0, 1.0, 2.0), (1, 5))  # fmt: skip
    key = TileKey(6, 24, "interpreter", "fp32")
    assert table.entries == {key: {1: TILES[1], 5: TILES[1]}}
    assert [(done, total) for _, done, total in reports] == [(n, 6) for n in range(1, 7)]
    assert reports[0][0].startswith("1 tokens: 16x32x32")


@interpreted
@pytest.mark.usefixtures("three")
def test_a_tile_that_is_wrong_is_reported_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = TritonExperts.run

    def run(self: Any, x: Any, weights: Any, ids: Any, tile: Tile) -> Any:
        return plain(self, x, weights, ids, tile) + (1.0 if tile == TILES[1] else 0.0)

    monkeypatch.setattr(TritonExperts, "run", run)
    reports: list[str] = []
    table = tune(shape(), "fp32", CPU, lambda what, *_: reports.append(what),
                 ScriptedTimer(3.0, 2.0), (5,))  # fmt: skip
    assert list(table.entries.values()) == [{5: TILES[2]}]
    assert [("wrong by" in what) for what in reports] == [False, True, False]


@interpreted
@pytest.mark.usefixtures("three")
def test_nothing_right_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TritonExperts, "run", lambda self, x, *_: torch.full_like(x, torch.nan))
    with pytest.raises(DstuneError, match="no tile"):
        tune(shape(), "fp32", CPU, lambda *_: None, ScriptedTimer(), (5,))


def test_measuring_needs_a_cuda_device() -> None:
    with pytest.raises(UsageError, match="CUDA device"):
        tune(shape(), "bf16", CPU, lambda *_: None)


def test_a_dense_model_has_nothing_to_tune() -> None:
    with pytest.raises(UsageError, match="no routed experts"):
        tune(replace(shape(), moe=None), "bf16", CPU, lambda *_: None)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(
    ("precision", "operand_bytes"),
    [("bf16", (2, 2)), ("int8", (1, 1)), ("fp8", (1, 1)), ("int8_weight_only", (2, 1))],
)
def test_candidates_fit_and_differ(
    name: str, precision: str, operand_bytes: tuple[int, int]
) -> None:
    gpu = TARGETS[name]
    for pairs in (0.1, 3.0, 24.0, 400.0):
        tiles = list(candidates(pairs, precision, operand_bytes, gpu))
        assert len(set(tiles)) == len(tiles) >= 8
        for tile in tiles:
            assert tile.shared_memory_bytes(*operand_bytes) <= gpu.shared_memory_bytes
            assert precision != "int8" or tile.block_k % 64 == 0
            assert tile.block_n >= 32 and tile.block_k >= 32
