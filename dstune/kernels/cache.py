"""Storage of the KV cache of one layer; the block is the first dimension, so a block is one copy.

Storage only: which block belongs to whom is the engine's business. A quantised cache keeps its
scales beside it, indexed by the same block ids, so that they travel with their blocks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

SCALED = (torch.int8, torch.float8_e4m3fn)  # element types that have scales beside them


@dataclass(frozen=True)
class KvLayer:
    """Keys and values of one layer with grouped-query attention."""

    k: Tensor  # [num_blocks, block_size, num_kv_heads, head_dim]
    v: Tensor  # the same
    k_scale: Tensor | None  # fp32 [num_blocks, block_size, num_kv_heads], for int8 and fp8 only
    v_scale: Tensor | None


@dataclass(frozen=True)
class LatentLayer:
    """The compressed cache of one layer with multi-head latent attention (DeepSeek)."""

    latent: Tensor  # [num_blocks, block_size, kv_lora_rank]
    rope: Tensor  # [num_blocks, block_size, rope_dim], never quantised: it is small and sensitive
    scale: Tensor | None  # fp32 [num_blocks, block_size], for an int8 or fp8 latent only


def allocate_kv_layer(
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> KvLayer:
    """Allocate one layer's keys and values; int8 and fp8 bring a scale per token and head."""
    shape = (num_blocks, block_size, num_kv_heads, head_dim)
    scales = [
        torch.zeros(shape[:3], dtype=torch.float32, device=device) if dtype in SCALED else None
        for _ in range(2)
    ]
    return KvLayer(
        torch.zeros(shape, dtype=dtype, device=device),
        torch.zeros(shape, dtype=dtype, device=device),
        scales[0],
        scales[1],
    )


def allocate_latent_layer(
    num_blocks: int,
    block_size: int,
    kv_lora_rank: int,
    rope_dim: int,
    dtype: torch.dtype,
    rope_dtype: torch.dtype,
    device: torch.device | str,
) -> LatentLayer:
    """Allocate one layer's latents and rotary keys; int8 and fp8 bring a scale per token."""
    rows = (num_blocks, block_size)
    return LatentLayer(
        torch.zeros((*rows, kv_lora_rank), dtype=dtype, device=device),
        torch.zeros((*rows, rope_dim), dtype=rope_dtype, device=device),
        torch.zeros(rows, dtype=torch.float32, device=device) if dtype in SCALED else None,
    )
