"""Cache writes and reads in plain torch."""

import torch
from torch import Tensor

from dstune.kernels.cache import KvLayer, LatentLayer

MIN_SCALE = 1e-6  # keeps a row of zeros from dividing by zero; the same in every backend


def write_kv(k: Tensor, v: Tensor, layer: KvLayer, slot_mapping: Tensor) -> None:
    """Store k, v [T, Hkv, D] at slot_mapping int64 [T]; slot -1 is skipped.

    An int8 cache gets a scale per token and head: max(amax / 127, 1e-6), round, then clamp.
    """
    _store(k, layer.k, layer.k_scale, slot_mapping)
    _store(v, layer.v, layer.v_scale, slot_mapping)


def write_latent(latent: Tensor, rope: Tensor, layer: LatentLayer, slot_mapping: Tensor) -> None:
    """Store latent [T, R] and rope [T, P] at slot_mapping int64 [T]; slot -1 is skipped.

    An int8 latent gets a scale per token; the rotary part keeps its dtype.
    """
    _store(latent, layer.latent, layer.scale, slot_mapping)
    _store(rope, layer.rope, None, slot_mapping)


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
    rows = cache.flatten(0, 1)[slots].float()
    return rows if scale is None else rows * scale.flatten(0, 1)[slots].unsqueeze(-1)


def quantise_rows(x: Tensor, min_scale: float) -> tuple[Tensor, Tensor]:
    """Quantise the last dimension of x symmetrically: (int8 like x, fp32 scale [...]).

    Multiplies by the reciprocal of the scale, as every backend does, so that results are equal.
    """
    x32 = x.float()
    scale = (x32.abs().amax(-1) / 127.0).clamp_min(min_scale)
    rounded = torch.round(x32 * scale.reciprocal().unsqueeze(-1)).clamp(-127, 127)
    return rounded.to(torch.int8), scale


def _store(rows: Tensor, cache: Tensor, scale: Tensor | None, slot_mapping: Tensor) -> None:
    keep = slot_mapping >= 0
    slots, rows = slot_mapping[keep], rows[keep]
    if scale is None:
        cache.flatten(0, 1)[slots] = rows.to(cache.dtype)
        return
    quantised, row_scale = quantise_rows(rows, MIN_SCALE)
    cache.flatten(0, 1)[slots] = quantised
    scale.flatten(0, 1)[slots] = row_scale
