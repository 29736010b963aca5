"""Cache writes and reads in plain torch."""

import torch
from torch import Tensor

from dstune.kernels.batch import AttentionBatch, Rotation
from dstune.kernels.cache import KvLayer, LatentLayer
from dstune.kernels.norm.reference import rms_norm
from dstune.kernels.rope.reference import apply_rope

MIN_SCALE = 1e-6  # keeps a row of zeros from dividing by zero; the same in every backend
FP8_MAX = 448.0  # the largest e4m3 number
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: FP8_MAX}


def write_kv(k: Tensor, v: Tensor, layer: KvLayer, slot_mapping: Tensor) -> None:
    """Store k, v [T, Hkv, D] at slot_mapping int64 [T]; slot -1 is skipped.

    An int8 or fp8 cache gets a scale per token and head: max(amax / largest number, 1e-6); values
    are divided by it, rounded, then clamped.
    """
    _store(k, layer.k, layer.k_scale, slot_mapping)
    _store(v, layer.v, layer.v_scale, slot_mapping)


def rotate_and_write_kv(
    qkv: Tensor, num_heads: int, rotation: Rotation, layer: KvLayer, batch: AttentionBatch
) -> None:
    """Rotate queries and keys of qkv [T, H + 2 Hkv, D] and store keys and values.

    Queries (the first H heads) are rotated in place; what is left in the others is undefined.
    """
    num_kv_heads = layer.k.shape[2]
    rotated = num_heads + num_kv_heads
    apply_rope(qkv[:, :rotated], batch.positions, rotation.cos, rotation.sin, rotation.interleaved)
    write_kv(qkv[:, num_heads:rotated], qkv[:, rotated:], layer, batch.slot_mapping)


def write_latent(latent: Tensor, rope: Tensor, layer: LatentLayer, slot_mapping: Tensor) -> None:
    """Store latent [T, R] and rope [T, P] at slot_mapping int64 [T]; slot -1 is skipped.

    An int8 or fp8 latent gets a scale per token; the rotary part keeps its dtype.
    """
    _store(latent, layer.latent, layer.scale, slot_mapping)
    _store(rope, layer.rope, None, slot_mapping)


def rotate_and_write_latent(
    query: Tensor,
    latent_and_key: Tensor,
    norm: tuple[Tensor, float],
    rotation: Rotation,
    layer: LatentLayer,
    batch: AttentionBatch,
) -> None:
    """Rotate queries, normalise latents, rotate keys, and store latents and keys.

    The last P of each query [T, H, N + P] are rotated in place. latent_and_key [T, R + P] is the
    latent before its RMSNorm (weight [R], eps) beside the unrotated key; what is left in it is
    undefined.
    """
    rank, rope_dim = layer.latent.shape[-1], layer.rope.shape[-1]
    key = latent_and_key[:, rank:]
    for rotary in (query[:, :, query.shape[-1] - rope_dim :], key.unsqueeze(1)):
        apply_rope(rotary, batch.positions, rotation.cos, rotation.sin, rotation.interleaved)
    weight, eps = norm
    latent = rms_norm(latent_and_key[:, :rank], weight, eps)
    write_latent(latent, key, layer, batch.slot_mapping)


def gather_latent(
    layer: LatentLayer, block_table_row: Tensor, kv_len: int, block_size: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return one sequence's (latent [kv_len, R], rope [kv_len, P]), dequantised to dtype."""
    slots = sequence_slots(block_table_row, kv_len, block_size)
    latent = load(layer.latent, layer.scale, slots).to(dtype)
    return latent, load(layer.rope, None, slots).to(dtype)


def sequence_slots(block_table_row: Tensor, kv_len: int, block_size: int) -> Tensor:
    """Return the slots of a sequence's first kv_len tokens, int64 [kv_len]."""
    token = torch.arange(kv_len, device=block_table_row.device)
    return block_table_row[token // block_size].long() * block_size + token % block_size


def load(cache: Tensor, scale: Tensor | None, slots: Tensor) -> Tensor:
    """Return the rows of cache [num_blocks, block_size, ...] at slots, as fp32."""
    flat = cache.flatten(0, 1)
    if cache.dtype == torch.float8_e4m3fn:
        rows = flat.view(torch.int8)[slots].view(cache.dtype).float()
    else:
        rows = flat[slots].float()
    return rows if scale is None else rows * scale.flatten(0, 1)[slots].unsqueeze(-1)


def quantise_rows(
    x: Tensor, min_scale: float, dtype: torch.dtype = torch.int8
) -> tuple[Tensor, Tensor]:
    """Quantise the last dimension of x symmetrically: (int8 or fp8 like x, fp32 scale [...]).

    Multiplies by the reciprocal of the scale, as every backend does, so that results are equal.
    """
    x32 = x.float()
    largest = LARGEST[dtype]
    scale = (x32.abs().amax(-1) / largest).clamp_min(min_scale)
    scaled = x32 * scale.reciprocal().unsqueeze(-1)
    if dtype == torch.int8:
        scaled = torch.round(scaled)
    return scaled.clamp(-largest, largest).to(dtype), scale


def _store(rows: Tensor, cache: Tensor, scale: Tensor | None, slot_mapping: Tensor) -> None:
    keep = slot_mapping >= 0
    slots, rows = slot_mapping[keep], rows[keep]
    if scale is None:
        cache.flatten(0, 1)[slots] = rows.to(cache.dtype)
        return
    quantised, row_scale = quantise_rows(rows, MIN_SCALE, cache.dtype)
    # torch has no indexed write of fp8
    cache.flatten(0, 1).view(torch.int8)[slots] = quantised.view(torch.int8)
    scale.flatten(0, 1)[slots] = row_scale
