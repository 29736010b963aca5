"""Multi-head latent attention for training: batched, un-absorbed, without a cache.

Shapes use B sequences, S positions, H heads, D hidden size and R rotated dimensions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dstune.model.tiny_deepseek.architecture import NetworkConfig
from dstune.model.tiny_deepseek.layers import Linear, Norm

_QUERY_CHUNK = 128


def yarn_angles(config: NetworkConfig, length: int) -> Tensor:
    """Rotation angles in radians, shape [length, qk_rope_head_dim / 2]."""
    yarn, dim = config.rope_scaling, config.qk_rope_head_dim
    base = config.rope_theta

    def dimension_turning(turns: float) -> float:
        """Pair index whose angle makes `turns` full turns over the original context."""
        ratio = yarn["original_max_position_embeddings"] / (turns * 2 * math.pi)
        return dim * math.log(ratio) / (2 * math.log(base))

    low = max(math.floor(dimension_turning(yarn["beta_fast"])), 0)
    high = min(math.ceil(dimension_turning(yarn["beta_slow"])), dim - 1)
    pair = torch.arange(dim // 2, dtype=torch.float32)
    frequency = base ** (-2 * pair / dim)
    ramp = ((pair - low) / max(high - low, 0.001)).clamp(0, 1)
    frequency = frequency * (1 - ramp) + frequency / yarn["factor"] * ramp
    return torch.outer(torch.arange(length, dtype=torch.float32), frequency)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the interleaved pairs of `x` [B, S, heads, R]; cos and sin are [S, 1, R/2]."""
    even, odd = x[..., 0::2], x[..., 1::2]
    pairs = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return pairs.flatten(-2).to(x.dtype)


def causal_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Attention of each position over itself and those before; all are [B, H, S, width].

    Query chunks as explicit products are twice as fast on a CPU as the fused kernel at this
    size, and skip most of the masked half.
    """
    batch, heads, length, _ = query.shape
    query, key, value = (query * scale).flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1)
    chunks = []
    for start in range(0, length, _QUERY_CHUNK):
        end = min(start + _QUERY_CHUNK, length)
        mask = query.new_full((end - start, end), float("-inf")).triu(start + 1)
        keys = key[:, :end].transpose(1, 2)
        # Added in place: the fused form (baddbmm) first spreads the mask over all heads.
        scores = torch.bmm(query[:, start:end], keys).add_(mask)
        chunks.append(torch.bmm(scores.softmax(-1), value[:, :end]))
    return torch.cat(chunks, dim=1).view(batch, heads, length, -1)


class Attention(nn.Module):
    """Multi-head latent attention, un-absorbed: keys and values are expanded for all heads."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        c, heads = config, config.num_attention_heads
        self.q_a_proj = Linear(c.hidden_size, c.q_lora_rank)
        self.q_a_layernorm = Norm(c.q_lora_rank, c.rms_norm_eps)
        self.q_b_proj = Linear(c.q_lora_rank, heads * c.qk_head_dim)
        self.kv_a_proj_with_mqa = Linear(c.hidden_size, c.kv_lora_rank + c.qk_rope_head_dim)
        self.kv_a_layernorm = Norm(c.kv_lora_rank, c.rms_norm_eps)
        self.kv_b_proj = Linear(c.kv_lora_rank, heads * (c.qk_nope_head_dim + c.v_head_dim))
        self.o_proj = Linear(heads * c.v_head_dim, c.hidden_size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Causal attention over `x` [B, S, D], returned in the same shape."""
        query, key, value = self._heads(x, cos, sin)
        out = causal_attention(query, key, value, self.config.softmax_scale)
        return self.o_proj(out.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _heads(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys [B, H, S, qk_head_dim] and values [B, H, S, v_head_dim]."""
        c, (batch, length, _) = self.config, x.shape
        heads, nope, rope = c.num_attention_heads, c.qk_nope_head_dim, c.qk_rope_head_dim
        query = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).view(batch, length, heads, -1)
        latent, key_rope = self.kv_a_proj_with_mqa(x).split([c.kv_lora_rank, rope], dim=-1)
        expanded = self.kv_b_proj(self.kv_a_layernorm(latent)).view(batch, length, heads, -1)
        key_nope, value = expanded.split([nope, c.v_head_dim], dim=-1)
        query_rope = rotate(query[..., nope:], cos, sin)
        key_rope = rotate(key_rope.unsqueeze(2), cos, sin).expand(-1, -1, heads, -1)
        query = torch.cat((query[..., :nope], query_rope), dim=-1)
        key = torch.cat((key_nope, key_rope), dim=-1)
        return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
