"""A GGUF file of the llama architecture, under Hugging Face names and in Hugging Face layout."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor

from dstune.architecture import (
    LinearScaling,
    Llama3Scaling,
    ModelShape,
    RopeShape,
    YarnScaling,
    shape_from_gguf,
)
from dstune.errors import ModelError
from dstune.model.loading.digest import Digest
from dstune.model.loading.gguf_header import GgufHeader, GgufTensor, read_header
from dstune.model.loading.gguf_vocabulary import gguf_tokenizer
from dstune.model.loading.weights import check_tensors
from dstune.model.reason import one_line
from dstune.model.tokenizer import Tokenizer

STORED = {Kind.F32: torch.float32, Kind.F16: torch.float16, Kind.BF16: torch.bfloat16}
QUANTISED = (Kind.Q8_0, Kind.Q4_0, Kind.Q4_1)
ROPE_FACTORS = "rope_freqs.weight"
OUTSIDE_LAYERS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
UNSUPPORTED = ("llama.expert_count", "llama.attention.sliding_window")
"""Keys that change the computation in a way that the engine does not follow."""


@dataclass(frozen=True)
class GgufFile:
    """An opened GGUF file: everything but the tensors is read."""

    shape: ModelShape
    weights: GgufWeights
    tokenizer: Tokenizer
    digest: str


class GgufWeights:
    """Tensors of a mapped GGUF file, dequantised and un-permuted when taken."""

    def __init__(self, header: GgufHeader, shape: ModelShape) -> None:
        self._header = header
        self._heads = {"q_proj": shape.num_heads, "k_proj": shape.num_kv_heads}
        self._tensors = _by_published_name(header)

    def take(self, name: str) -> Tensor:
        """The tensor; fp32, fp16 and bf16 as stored, quantised ones as fp32."""
        if name not in self._tensors:
            raise ModelError(f"{self._header.path}: tensor {name!r} is missing")
        tensor = _read(self._header, self._tensors[name])
        heads = self._heads.get(name.split(".")[-2])
        return tensor if heads is None else unpermute(tensor, heads)

    def has(self, name: str) -> bool:
        """Whether the file holds that tensor."""
        return name in self._tensors


def open_gguf(path: Path, name: str) -> GgufFile:
    """Open a GGUF file and check every tensor by its header; raises `ModelError`."""
    header = read_header(path)
    try:
        shape = _shape(header, name)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: metadata is not usable: {one_line(error)}") from None
    tensors = _by_published_name(header)
    for tensor in tensors.values():
        if tensor.kind not in STORED and tensor.kind not in QUANTISED:
            raise ModelError(
                f"{path}: tensor {tensor.name!r} is of type {tensor.kind.name}; supported are "
                f"{', '.join(kind.name for kind in (*STORED, *QUANTISED))}"
            )
    check_tensors(shape, {key: tensor.size for key, tensor in tensors.items()}, str(path))
    digest = Digest()
    digest.add("gguf", header.data[: header.header_bytes])
    digest.add_sampled(path)
    tokenizer = gguf_tokenizer(header, shape)
    return GgufFile(shape, GgufWeights(header, shape), tokenizer, digest.hexdigest())


def unpermute(rows: Tensor, heads: int) -> Tensor:
    """Rows of a query or key projection from GGUF's order to Hugging Face's.

    GGUF puts the two halves of a rotary pair beside each other (0, half, 1, half + 1, ...), for
    interleaved rotation; Hugging Face rotates (i, i + half). rows [heads * head_dim, ...]
    """
    pairs = rows.view(heads, -1, 2, *rows.shape[1:])  # [heads, head_dim / 2, 2, ...]
    return pairs.transpose(1, 2).reshape(rows.shape)


def _shape(header: GgufHeader, name: str) -> ModelShape:
    fields, path = header.fields, header.path
    if fields.get("split.count", 1) > 1:
        raise ModelError(f"{path}: one of {fields['split.count']} parts; merge them first")
    shape = shape_from_gguf(fields, name)
    for key in UNSUPPORTED:
        if fields.get(key):
            raise ModelError(f"{path}: {key} = {fields[key]!r} is not supported")
    for key in ("llama.rope.dimension_count", "llama.attention.value_length"):
        if fields.get(key, shape.head_dim) != shape.head_dim:
            raise ModelError(
                f"{path}: {key} = {fields[key]!r} is not supported beside heads of {shape.head_dim}"
            )
    return replace(
        shape,
        rope=_rope(header, shape.rope),
        is_tied="output.weight" not in header.tensors,
        has_attention_bias="blk.0.attn_q.bias" in header.tensors,
    )


def _rope(header: GgufHeader, rope: RopeShape) -> RopeShape:
    """The rotary embedding with whatever scaling the metadata or a factor tensor ask for."""
    fields, path = header.fields, header.path
    prefix = "llama.rope.scaling"
    factor = float(fields.get(f"{prefix}.factor") or fields.get("llama.rope.scale_linear") or 1)
    kind = fields.get(f"{prefix}.type", "linear")  # llama.cpp's default
    if ROPE_FACTORS in header.tensors:
        if factor != 1:
            raise ModelError(f"{path}: {ROPE_FACTORS} beside {prefix}.factor is not supported")
        return _llama3_rope(header, rope)
    if factor == 1 or kind == "none":
        return rope
    if kind == "linear":
        return replace(rope, scaling=LinearScaling(factor))
    if kind != "yarn":
        raise ModelError(f"{path}: {prefix}.type {kind!r} is not supported")
    if fields.get(f"{prefix}.attn_factor", 1) != 1:
        raise ModelError(f"{path}: {prefix}.attn_factor is not supported")
    original = fields.get(f"{prefix}.original_context_length")
    if not original:
        raise ModelError(f"{path}: GGUF metadata lacks '{prefix}.original_context_length'")
    yarn = YarnScaling(
        factor=factor,
        original_max_position=int(original),
        beta_fast=float(fields.get(f"{prefix}.yarn_beta_fast", 32)),
        beta_slow=float(fields.get(f"{prefix}.yarn_beta_slow", 1)),
        mscale=0.0,  # no DeepSeek magnitudes: YaRN's own 0.1 ln(factor) + 1
    )
    return replace(rope, scaling=yarn)


def _llama3_rope(header: GgufHeader, rope: RopeShape) -> RopeShape:
    """Llama 3.1's scaling, which GGUF keeps only as a tensor of divisors, one per pair.

    The published constants are tried and must reproduce the tensor; other divisors are refused.
    """
    tensor = header.tensors[ROPE_FACTORS]
    if tensor.kind is not Kind.F32 or tensor.size != (rope.dim // 2,):
        raise ModelError(f"{header.path}: {ROPE_FACTORS} is {tensor.kind.name} {tensor.size}")
    divisors = _read(header, tensor).double()
    scaling = Llama3Scaling(float(divisors.max()), 8192, low_freq_factor=1.0, high_freq_factor=4.0)
    frequencies = rope.theta ** -(torch.arange(0, rope.dim, 2, dtype=torch.float64) / rope.dim)
    turns = scaling.original_max_position * frequencies / (2 * torch.pi)
    smooth = (turns - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    smooth = smooth.clamp(0, 1)
    expected = 1 / ((1 - smooth) / scaling.factor + smooth)
    if not torch.allclose(divisors, expected, rtol=1e-4):
        raise ModelError(f"{header.path}: {ROPE_FACTORS} is not Llama 3's scaling, not supported")
    return rope if scaling.factor == 1 else replace(rope, scaling=scaling)


def _by_published_name(header: GgufHeader) -> dict[str, GgufTensor]:
    """Tensors under Hugging Face names; one without a counterpart keeps its GGUF name."""
    tensors = {_published_name(name): tensor for name, tensor in header.tensors.items()}
    tensors.pop(ROPE_FACTORS, None)  # it is read into the shape
    return tensors


def _published_name(name: str) -> str:
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if layer and layer[2] in IN_LAYER:
        return f"model.layers.{layer[1]}.{IN_LAYER[layer[2]]}.{layer[3]}"
    stem, _, ending = name.rpartition(".")
    return f"{OUTSIDE_LAYERS[stem]}.{ending}" if stem in OUTSIDE_LAYERS else name


def _read(header: GgufHeader, tensor: GgufTensor) -> Tensor:
    raw: np.ndarray[Any, np.dtype[np.uint8]]
    raw = np.frombuffer(header.data, np.uint8, tensor.num_bytes, tensor.offset)
    if tensor.kind in STORED:
        # a copy, because torch refuses memory that it may not write
        return torch.from_numpy(raw.copy()).view(STORED[tensor.kind]).view(tensor.size)
    rows = raw.reshape(*tensor.size[:-1], -1)
    return torch.from_numpy(gguf.dequantize(rows, tensor.kind)).view(tensor.size)
