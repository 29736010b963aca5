"""The Llama architecture: grouped-query attention and a gated feed-forward."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dstune.architecture import ModelShape
from dstune.kernels.batch import AttentionBatch
from dstune.kernels.cache import KvLayer, allocate_kv_layer
from dstune.kernels.select import Kernels, Linear
from dstune.model.layers import Decoder, Ends, GatedMlp, Packer
from dstune.model.loading.weights import Weights
from dstune.model.precision import Precision
from dstune.model.rope import make_rotation


@dataclass(frozen=True)
class LlamaLayer:
    """One block's weights."""

    input_norm: Tensor
    qkv: Linear
    out: Linear
    post_norm: Tensor
    mlp: GatedMlp


class LlamaModel:
    """Llama over a paged KV cache."""

    def __init__(
        self, shape: ModelShape, weights: Weights, kernels: Kernels, precision: Precision
    ) -> None:
        self.shape = shape
        self.precision = precision
        self.kernels = kernels
        packer = Packer(weights, kernels, precision)
        ends = Ends.load(packer, shape)
        self._layers = [self._load_layer(packer, index) for index in range(shape.num_layers)]
        self._decoder = Decoder(ends, self._layers, kernels, shape.rms_norm_eps)
        self._scale = shape.softmax_scale
        self._rotation = make_rotation(shape.rope, shape.max_position, precision.device)
        self.num_weight_bytes = packer.num_bytes

    def _load_layer(self, packer: Packer, index: int) -> LlamaLayer:
        prefix = f"model.layers.{index}"
        attention = f"{prefix}.self_attn"
        return LlamaLayer(
            input_norm=packer.take(f"{prefix}.input_layernorm.weight"),
            qkv=packer.linear(*(f"{attention}.{name}_proj" for name in "qkv")),
            out=packer.linear(f"{attention}.o_proj"),
            post_norm=packer.take(f"{prefix}.post_attention_layernorm.weight"),
            mlp=GatedMlp.load(packer, self.kernels, f"{prefix}.mlp"),
        )

    def allocate_cache(self, num_blocks: int, block_size: int, dtype: torch.dtype) -> list[KvLayer]:
        """K and V of every layer, [num_blocks, block_size, num_kv_heads, head_dim] each."""
        heads, dim, device = self.shape.num_kv_heads, self.shape.head_dim, self.precision.device
        return [
            allocate_kv_layer(num_blocks, block_size, heads, dim, dtype, device)
            for _ in self._layers
        ]

    def forward(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        cache: list[KvLayer],
        logits_rows: Tensor,
    ) -> Tensor:
        """Logits fp32 [num_logits_rows, vocab_size]; writes the tokens' K and V."""

        def attend(index: int, hidden: Tensor) -> Tensor:
            layer = self._layers[index]
            return layer.out(self._attend(layer, hidden, batch, cache[index]))

        return self._decoder(token_ids, attend, logits_rows)

    def _attend(
        self, layer: LlamaLayer, hidden: Tensor, batch: AttentionBatch, cache: KvLayer
    ) -> Tensor:
        heads, kv_heads, dim = self.shape.num_heads, self.shape.num_kv_heads, self.shape.head_dim
        qkv = layer.qkv(hidden).view(-1, heads + 2 * kv_heads, dim)
        self.kernels.rotate_and_write_kv(qkv, heads, self._rotation, cache, batch)
        mixed = self.kernels.paged_attention(qkv[:, :heads], cache, batch, self._scale)
        return mixed.view(-1, heads * dim)
