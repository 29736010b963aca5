"""What a checkpoint must hold: Hugging Face tensor names and shapes, and how tensors are taken.

Every format (`folder.py`, `gguf.py`, `random.py`) offers its tensors as `Weights`, under the names
and in the layout that Hugging Face publishes; the architectures read nothing else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Protocol

from torch import Tensor

from dstune.architecture import MlaShape, ModelShape, MoeShape
from dstune.errors import ModelError

Expected = Iterator[tuple[str, tuple[int, ...]]]


class Weights(Protocol):
    """A checkpoint's tensors by Hugging Face name, read when taken."""

    def take(self, name: str) -> Tensor:
        """The tensor as stored (fp32, fp16, bf16); quantised formats come out as fp32.

        Raises `ModelError` that names file and tensor where it is missing.
        """
        ...

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds that tensor."""
        ...


def expected_tensors(shape: ModelShape) -> Expected:
    """Name and shape of every tensor that a checkpoint of this shape must hold.

    Linear weights are [out_features, in_features]. Embeddings come first and the layers in order,
    so taking the tensors in this order reads a file from front to back.
    """
    hidden = shape.hidden_size
    yield "model.embed_tokens.weight", (shape.vocab_size, hidden)
    for layer in range(shape.num_layers):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", (hidden,)
        if shape.mla is None:
            yield from _attention(shape, f"{prefix}.self_attn")
        else:
            yield from _latent_attention(shape, shape.mla, f"{prefix}.self_attn")
        yield f"{prefix}.post_attention_layernorm.weight", (hidden,)
        if shape.moe is not None and shape.is_moe_layer(layer):
            yield from _experts(hidden, shape.moe, f"{prefix}.mlp")
        else:
            yield from _feed_forward(hidden, shape.intermediate_size, f"{prefix}.mlp")
    yield "model.norm.weight", (hidden,)
    if not shape.is_tied:
        yield "lm_head.weight", (shape.vocab_size, hidden)


def _attention(shape: ModelShape, prefix: str) -> Expected:
    query = shape.num_heads * shape.head_dim
    key_value = shape.num_kv_heads * shape.head_dim
    for name, rows, columns in (
        ("q_proj", query, shape.hidden_size),
        ("k_proj", key_value, shape.hidden_size),
        ("v_proj", key_value, shape.hidden_size),
        ("o_proj", shape.hidden_size, query),
    ):
        yield f"{prefix}.{name}.weight", (rows, columns)
        if shape.has_attention_bias:
            yield f"{prefix}.{name}.bias", (rows,)


def _latent_attention(shape: ModelShape, mla: MlaShape, prefix: str) -> Expected:
    if shape.has_attention_bias:
        raise ModelError(f"{shape.name}: attention_bias is not supported with latent attention")
    hidden, heads = shape.hidden_size, shape.num_heads
    if mla.q_lora_rank is None:
        yield f"{prefix}.q_proj.weight", (heads * mla.qk_dim, hidden)
    else:
        yield f"{prefix}.q_a_proj.weight", (mla.q_lora_rank, hidden)
        yield f"{prefix}.q_a_layernorm.weight", (mla.q_lora_rank,)
        yield f"{prefix}.q_b_proj.weight", (heads * mla.qk_dim, mla.q_lora_rank)
    latent = mla.kv_lora_rank
    yield f"{prefix}.kv_a_proj_with_mqa.weight", (latent + mla.rope_dim, hidden)
    yield f"{prefix}.kv_a_layernorm.weight", (latent,)
    yield f"{prefix}.kv_b_proj.weight", (heads * (mla.nope_dim + mla.v_dim), latent)
    yield f"{prefix}.o_proj.weight", (hidden, heads * mla.v_dim)


def _feed_forward(hidden: int, intermediate: int, prefix: str) -> Expected:
    yield f"{prefix}.gate_proj.weight", (intermediate, hidden)
    yield f"{prefix}.up_proj.weight", (intermediate, hidden)
    yield f"{prefix}.down_proj.weight", (hidden, intermediate)


def _experts(hidden: int, moe: MoeShape, prefix: str) -> Expected:
    yield f"{prefix}.gate.weight", (moe.num_experts, hidden)
    if moe.scoring == "sigmoid":
        yield f"{prefix}.gate.e_score_correction_bias", (moe.num_experts,)
    for expert in range(moe.num_experts):
        yield from _feed_forward(hidden, moe.intermediate_size, f"{prefix}.experts.{expert}")
    if moe.num_shared:
        # published checkpoints fuse the shared experts into one wide feed-forward
        width = moe.intermediate_size * moe.num_shared
        yield from _feed_forward(hidden, width, f"{prefix}.shared_experts")


def check_tensors(
    shape: ModelShape, found: Mapping[str, tuple[int, ...]], source: str
) -> frozenset[str]:
    """Compare a checkpoint's headers with what its shape needs; returns the names needed.

    Raises `ModelError` for the first tensor that is missing, of another shape, or that this
    architecture has no place for: leaving out a tensor that belongs to the model (a bias, another
    kind of norm) would answer wrongly without a word.
    """
    _check_sizes(shape, source)
    needed: set[str] = set()
    for name, size in expected_tensors(shape):
        if name not in found:
            raise ModelError(f"{source}: tensor {name!r} is missing")
        if found[name] != size:
            raise ModelError(
                f"{source}: tensor {name!r} is {_by(found[name])}, "
                f"but the configuration asks for {_by(size)}"
            )
        needed.add(name)
    for name in found:
        if name not in needed and not _may_be_left(shape, name):
            raise ModelError(f"{source}: tensor {name!r} has no place in this architecture")
    return frozenset(needed)


def _check_sizes(shape: ModelShape, source: str) -> None:
    for field in ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads",
                  "head_dim", "intermediate_size", "max_position"):  # fmt: skip
        if getattr(shape, field) <= 0:
            raise ModelError(f"{source}: {field} is {getattr(shape, field)}, it must be positive")
    for label, value in (("rms_norm_eps", shape.rms_norm_eps), ("rope theta", shape.rope.theta)):
        if not 0 < value < math.inf:  # not a number is neither
            raise ModelError(f"{source}: {label} is {value}, it must be positive and finite")
    if shape.num_heads % shape.num_kv_heads:
        raise ModelError(
            f"{source}: {shape.num_heads} heads are no multiple of {shape.num_kv_heads} KV heads"
        )


def _may_be_left(shape: ModelShape, name: str) -> bool:
    """Tensors that published checkpoints carry and inference does not need."""
    if name == "lm_head.weight":  # a second copy of tied embeddings
        return shape.is_tied
    if name.endswith("rotary_emb.inv_freq"):  # a buffer that old versions of transformers saved
        return True
    layer = re.match(r"model\.layers\.(\d+)\.", name)
    # DeepSeek-V3's multi-token prediction lies behind the last layer
    return layer is not None and shape.family == "deepseek" and int(layer[1]) >= shape.num_layers


def _by(size: tuple[int, ...]) -> str:
    return "x".join(map(str, size)) or "a scalar"
