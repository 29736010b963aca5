"""Llama and DeepSeek against the classes of `transformers`, random tiny models in fp32.

The paths differ in everything: paged and scattered blocks, chunks, absorbed decode, mixed
batches. Logits must agree within 1e-4.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from paged import Paged
from torch import Tensor
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from dstune.architecture import shape_from_config
from dstune.kernels.select import select
from dstune.model.model import Model, build_model
from dstune.model.precision import resolve_precision

CPU = torch.device("cpu")
TOLERANCE = 1e-4

YARN = {
    "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32,
    "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4,
    "n_shared_experts": 1, "n_routed_experts": 8, "num_experts_per_tok": 3, "kv_lora_rank": 32,
    "qk_rope_head_dim": 16, "qk_nope_head_dim": 24, "v_head_dim": 20, "first_k_dense_replace": 1,
    "max_position_embeddings": 256, "initializer_range": 0.2,
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 96, "intermediate_size": 112, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 24,
    "max_position_embeddings": 256, "initializer_range": 0.2,
}  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64, "rope_theta": 10000.0,
}  # fmt: skip

CASES: dict[str, Callable[[], torch.nn.Module]] = {
    "llama-gqa": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA)),
    "llama-tied-bias": lambda: LlamaForCausalLM(
        LlamaConfig(**LLAMA, tie_word_embeddings=True, attention_bias=True)
    ),
    "llama-3.1-rope": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA, rope_parameters=LLAMA3_ROPE)),
    "deepseek-v2-plain-query": lambda: DeepseekV2ForCausalLM(
        DeepseekV2Config(**DEEPSEEK, q_lora_rank=None, topk_method="greedy")
    ),
    "deepseek-v2-groups": lambda: DeepseekV2ForCausalLM(
        DeepseekV2Config(
            **DEEPSEEK, q_lora_rank=24, topk_method="group_limited_greedy", n_group=4,
            topk_group=2, routed_scaling_factor=1.5,
        )
    ),
    "deepseek-v3-groups": lambda: DeepseekV3ForCausalLM(
        DeepseekV3Config(
            **DEEPSEEK, q_lora_rank=24, n_group=4, topk_group=2, routed_scaling_factor=2.5
        )
    ),
    "deepseek-v3-yarn": lambda: DeepseekV3ForCausalLM(
        DeepseekV3Config(
            **DEEPSEEK, q_lora_rank=24, n_group=1, topk_group=1, rope_scaling=dict(YARN)
        )
    ),
}  # fmt: skip


class StateDict:
    """A transformers module's tensors under the names of published checkpoints."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._tensors: dict[str, Tensor] = {}
        for name, tensor in module.state_dict().items():
            if name.endswith("experts.gate_up_proj"):
                for expert, both in enumerate(tensor):
                    gate, up = both.chunk(2)
                    prefix = f"{name.removesuffix('.gate_up_proj')}.{expert}"
                    self._tensors[f"{prefix}.gate_proj.weight"] = gate
                    self._tensors[f"{prefix}.up_proj.weight"] = up
            elif name.endswith("experts.down_proj"):
                for expert, down in enumerate(tensor):
                    prefix = f"{name.removesuffix('.down_proj')}.{expert}"
                    self._tensors[f"{prefix}.down_proj.weight"] = down
            else:
                self._tensors[name] = tensor

    def take(self, name: str) -> Tensor:
        return self._tensors[name]

    def has(self, name: str) -> bool:
        return name in self._tensors


def randomise(module: torch.nn.Module) -> None:
    """Norms, biases and corrections away from their trivial initial values."""
    generator = torch.Generator().manual_seed(1)
    for name, tensor in module.state_dict().items():
        if "norm" in name:
            tensor.copy_(1 + 0.2 * torch.randn(tensor.shape, generator=generator))
        elif name.endswith("bias"):
            tensor.copy_(0.1 * torch.randn(tensor.shape, generator=generator))


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest) -> tuple[torch.nn.Module, StateDict]:
    torch.manual_seed(0)
    reference = CASES[request.param]().eval()
    randomise(reference)
    return reference, StateDict(reference)


@pytest.fixture(params=["reference", "cpu"])
def model(pair: tuple[torch.nn.Module, StateDict], request: pytest.FixtureRequest) -> Model:
    reference, weights = pair
    shape = shape_from_config(reference.config.to_dict(), "tiny")
    kernels = select(request.param, CPU)
    return build_model(shape, weights, kernels, resolve_precision("fp32", CPU, kernels))


@torch.inference_mode()
def truth(reference: torch.nn.Module, ids: list[int]) -> Tensor:
    return reference(torch.tensor([ids])).logits[0].float()


def tokens(seed: int, length: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 97, (length,), generator=generator).tolist()


def close(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=TOLERANCE)


def test_whole_prefill(pair: tuple[torch.nn.Module, StateDict], model: Model[Any]) -> None:
    ids = tokens(1, 90)
    close(Paged(model, 16).step({"a": ids})["a"], truth(pair[0], ids))


@pytest.mark.parametrize("block_size", [8, 32])
def test_token_by_token(
    pair: tuple[torch.nn.Module, StateDict], model: Model[Any], block_size: int
) -> None:
    ids = tokens(2, 40)
    paged = Paged(model, block_size)
    close(torch.cat([paged.step({"a": [token]})["a"] for token in ids]), truth(pair[0], ids))


@pytest.mark.parametrize("chunk", [5, 17, 33])
def test_chunked_prefill(
    pair: tuple[torch.nn.Module, StateDict], model: Model[Any], chunk: int
) -> None:
    ids = tokens(3, 80)
    paged = Paged(model, 16)
    parts = [paged.step({"a": ids[at : at + chunk]})["a"] for at in range(0, len(ids), chunk)]
    close(torch.cat(parts), truth(pair[0], ids))


def test_mixed_batch(pair: tuple[torch.nn.Module, StateDict], model: Model[Any]) -> None:
    """Decodes, a short chunk, a long chunk and a fresh prompt in the same step."""
    a, b, c, d = tokens(4, 31), tokens(5, 60), tokens(6, 70), tokens(7, 20)
    paged = Paged(model, 16)
    paged.step({"a": a[:30], "b": b[:57]})
    paged.step({"c": c[:40]})
    mixed = paged.step({"a": a[30:], "b": b[57:], "c": c[40:], "d": d})
    for name, ids, start in (("a", a, 30), ("b", b, 57), ("c", c, 40), ("d", d, 0)):
        close(mixed[name], truth(pair[0], ids)[start:])
