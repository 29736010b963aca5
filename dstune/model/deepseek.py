"""The DeepSeek V2/V3 architecture: multi-head latent attention and a mixture of experts.

The cache holds one latent and one rotary key per token, shared by the heads. Decode attends to
latents directly (absorbed: W_UK moved to the query, W_UV behind the attention); a long chunk of
prefill expands latents into keys and values instead, since that costs fewer operations there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dstune.architecture import MlaShape, ModelShape
from dstune.kernels.batch import AttentionBatch
from dstune.kernels.cache import SCALED, LatentLayer, allocate_latent_layer
from dstune.kernels.select import Kernels, Linear
from dstune.model.layers import Decoder, Ends, GatedMlp, Packer, PlainProduct
from dstune.model.loading.weights import Weights
from dstune.model.moe import MoeLayer
from dstune.model.precision import Precision
from dstune.model.rope import make_rotation

ABSORBED_MAX_QUERY = 8  # longer chunks expand; absorbed costs (512+64)/192 times the products
EXPANDED_MAX_KEYS = 8192  # expanded at a time, so that a long context needs no more memory


@dataclass(frozen=True)
class MlaWeights:
    """One layer's attention weights."""

    down: Linear  # hidden -> [query latent or whole query | KV latent | rotary key]
    query_norm: Tensor | None
    query_up: Linear | None  # None where the model has a plain q_proj
    latent_norm: Tensor
    expand: Linear  # latent -> per head (k_nope, v)
    absorb_key: Callable[[Tensor], Tensor]  # W_UK: [heads, M, nope] -> [heads, M, rank]
    absorb_value: Callable[[Tensor], Tensor]  # W_UV transposed: [heads, M, rank] -> [heads, M, v]
    out: Linear


@dataclass(frozen=True)
class DeepseekLayer:
    """One block's weights."""

    input_norm: Tensor
    attention: MlaWeights
    post_norm: Tensor
    mlp: GatedMlp | MoeLayer


def merge_attention(
    out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor
) -> tuple[Tensor, Tensor]:
    """Attention over two sets of keys from attention over each: (out fp32 [T, H, D], lse [T, H]).

    A row that saw no key has lse -inf and does not count. Source: Milakov and Gimelshein 2018.
    """
    total = torch.logaddexp(lse, other_lse)
    share, other_share = ((part - total).exp().unsqueeze(-1) for part in (lse, other_lse))
    return out.float() * share + other.float() * other_share, total


class DeepseekModel:
    """DeepSeek over a paged cache of latents."""

    def __init__(
        self, shape: ModelShape, weights: Weights, kernels: Kernels, precision: Precision
    ) -> None:
        assert shape.mla is not None
        self.shape = shape
        self.mla: MlaShape = shape.mla
        self.precision = precision
        self.kernels = kernels
        packer = Packer(weights, kernels, precision)
        ends = Ends.load(packer, shape)
        self._layers = [self._load_layer(packer, index) for index in range(shape.num_layers)]
        self._decoder = Decoder(ends, self._layers, kernels, shape.rms_norm_eps)
        self._scale = shape.softmax_scale
        self._rotation = make_rotation(shape.rope, shape.max_position, precision.device)
        self.num_weight_bytes = packer.num_bytes

    def _load_layer(self, packer: Packer, index: int) -> DeepseekLayer:
        prefix = f"model.layers.{index}"
        mlp: GatedMlp | MoeLayer
        if self.shape.is_moe_layer(index):
            assert self.shape.moe is not None
            mlp = MoeLayer.load(packer, self.kernels, f"{prefix}.mlp", self.shape.moe)
        else:
            mlp = GatedMlp.load(packer, self.kernels, f"{prefix}.mlp")
        return DeepseekLayer(
            input_norm=packer.take(f"{prefix}.input_layernorm.weight"),
            attention=self._load_attention(packer, f"{prefix}.self_attn"),
            post_norm=packer.take(f"{prefix}.post_attention_layernorm.weight"),
            mlp=mlp,
        )

    def _load_attention(self, packer: Packer, prefix: str) -> MlaWeights:
        mla = self.mla
        has_query_latent = mla.q_lora_rank is not None
        query_name = "q_a_proj" if has_query_latent else "q_proj"
        expand = packer.raw(f"{prefix}.kv_b_proj.weight")
        by_head = expand.view(self.shape.num_heads, mla.nope_dim + mla.v_dim, mla.kv_lora_rank)
        dtype = self.precision.activations
        absorb_key = by_head[:, : mla.nope_dim].to(dtype).contiguous()
        absorb_value = by_head[:, mla.nope_dim :].transpose(1, 2).to(dtype).contiguous()
        packer.num_bytes += sum(w.numel() * w.element_size() for w in (absorb_key, absorb_value))
        return MlaWeights(
            down=packer.linear(f"{prefix}.{query_name}", f"{prefix}.kv_a_proj_with_mqa"),
            query_norm=packer.take(f"{prefix}.q_a_layernorm.weight") if has_query_latent else None,
            query_up=packer.linear(f"{prefix}.q_b_proj") if has_query_latent else None,
            latent_norm=packer.take(f"{prefix}.kv_a_layernorm.weight"),
            expand=packer.pack(expand, [f"{prefix}.kv_b_proj"]),
            absorb_key=packer.named("linear.absorb_key", PlainProduct(absorb_key)),
            absorb_value=packer.named("linear.absorb_value", PlainProduct(absorb_value)),
            out=packer.linear(f"{prefix}.o_proj"),
        )

    def allocate_cache(
        self, num_blocks: int, block_size: int, dtype: torch.dtype
    ) -> list[LatentLayer]:
        """Latent [num_blocks, block_size, rank] and rotary key of every layer.

        A quantised cache keeps the rotary key in the activations' type: its error would not average
        out over the rank.
        """
        rope_dtype = self.precision.activations if dtype in SCALED else dtype
        return [
            allocate_latent_layer(
                num_blocks,
                block_size,
                self.mla.kv_lora_rank,
                self.mla.rope_dim,
                dtype,
                rope_dtype,
                self.precision.device,
            )
            for _ in self._layers
        ]

    def forward(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        cache: list[LatentLayer],
        logits_rows: Tensor,
    ) -> Tensor:
        """Logits fp32 [num_logits_rows, vocab_size]; writes the tokens' latents."""

        def attend(index: int, hidden: Tensor) -> Tensor:
            return self._attend(self._layers[index].attention, hidden, batch, cache[index])

        return self._decoder(token_ids, attend, logits_rows)

    def _attend(
        self, weights: MlaWeights, hidden: Tensor, batch: AttentionBatch, cache: LatentLayer
    ) -> Tensor:
        mla, kernels, eps = self.mla, self.kernels, self.shape.rms_norm_eps
        down = weights.down(hidden)
        split = down.shape[1] - mla.kv_lora_rank - mla.rope_dim
        query = down[:, :split]
        if weights.query_up is not None:
            assert weights.query_norm is not None
            query = weights.query_up(kernels.rms_norm(query, weights.query_norm, eps))
        query = query.view(-1, self.shape.num_heads, mla.qk_dim)
        kernels.rotate_and_write_latent(
            query, down[:, split:], (weights.latent_norm, eps), self._rotation, cache, batch
        )
        return weights.out(self._mix(weights, query, batch, cache))

    def _mix(
        self, weights: MlaWeights, query: Tensor, batch: AttentionBatch, cache: LatentLayer
    ) -> Tensor:
        """Attention by the cheaper route for each sequence: [num_tokens, heads * v]."""
        lens = batch.host_query_lens
        num_absorbed = next(
            (row for row, length in enumerate(lens) if length > ABSORBED_MAX_QUERY), len(lens)
        )
        parts = []
        start = 0
        if num_absorbed:
            start = sum(lens[:num_absorbed])
            parts.append(self._absorbed(weights, query[:start], batch.first(num_absorbed), cache))
        for row in range(num_absorbed, len(lens)):
            stop = start + lens[row]
            parts.append(self._expanded(weights, query[start:stop], batch, row, cache))
            start = stop
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _absorbed(
        self, weights: MlaWeights, query: Tensor, batch: AttentionBatch, cache: LatentLayer
    ) -> Tensor:
        nope = self.mla.nope_dim
        query_latent = weights.absorb_key(query[:, :, :nope].transpose(0, 1))
        mixed = self.kernels.latent_attention(
            query_latent.transpose(0, 1),
            query[:, :, nope:],
            cache,
            batch,
            self._scale,
        )
        values = weights.absorb_value(mixed.transpose(0, 1))
        return values.transpose(0, 1).reshape(len(query), -1)

    def _expanded(
        self,
        weights: MlaWeights,
        query: Tensor,
        batch: AttentionBatch,
        row: int,
        cache: LatentLayer,
    ) -> Tensor:
        kv_len = batch.host_kv_lens[row]
        mixed = lse = None
        for first in range(0, kv_len, EXPANDED_MAX_KEYS):
            span = (first, min(first + EXPANDED_MAX_KEYS, kv_len))
            part_lse = query.new_empty(query.shape[:2], dtype=torch.float32)
            part = self._attend_span(weights, query, batch, row, span, cache, part_lse)
            if mixed is None or lse is None:
                mixed, lse = part, part_lse
            else:
                mixed, lse = merge_attention(mixed, lse, part, part_lse)
        assert mixed is not None
        return mixed.to(query.dtype).reshape(len(query), -1)

    def _attend_span(
        self,
        weights: MlaWeights,
        query: Tensor,
        batch: AttentionBatch,
        row: int,
        span: tuple[int, int],
        cache: LatentLayer,
        lse: Tensor,
    ) -> Tensor:
        """Attention to the keys of `span` alone, expanded for it: [num_queries, heads, v]."""
        mla, heads = self.mla, self.shape.num_heads
        first, num_keys = span[0], span[1] - span[0]
        latent, rotary_key = self.kernels.gather_latent(
            cache,
            batch.block_tables[row, first // batch.block_size :],
            num_keys,
            batch.block_size,
            query.dtype,
        )
        expanded = weights.expand(latent).view(num_keys, heads, mla.nope_dim + mla.v_dim)
        shared = rotary_key.unsqueeze(1).expand(num_keys, heads, mla.rope_dim)
        keys = torch.cat([expanded[:, :, : mla.nope_dim], shared], dim=2)
        return self.kernels.dense_attention(
            query,
            keys,
            expanded[:, :, mla.nope_dim :],
            self._scale,
            batch.host_kv_lens[row] - len(query) - first,
            lse,
        )
