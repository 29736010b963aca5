"""Cache writes as native calls; reading latents stays with torch, it only serves prefill."""

import torch
from torch import Tensor

from dstune.kernels.batch import AttentionBatch, Rotation
from dstune.kernels.cache import KvLayer, LatentLayer
from dstune.kernels.cache_io.reference import gather_latent
from dstune.kernels.native import lib
from dstune.kernels.native.arguments import CODES, activation_code
from dstune.kernels.norm.cpu import rms_norm
from dstune.kernels.rope.cpu import apply_rope

__all__ = [
    "gather_latent",
    "rotate_and_write_kv",
    "rotate_and_write_latent",
    "write_kv",
    "write_latent",
]


def write_kv(k: Tensor, v: Tensor, layer: KvLayer, slot_mapping: Tensor) -> None:
    """Store k, v [T, Hkv, D], which may be strided views; see the reference."""
    _write(k, layer.k, layer.k_scale, slot_mapping)
    _write(v, layer.v, layer.v_scale, slot_mapping)


def write_latent(latent: Tensor, rope: Tensor, layer: LatentLayer, slot_mapping: Tensor) -> None:
    """Store latent [T, R] and rope [T, P], which may be strided views; see the reference."""
    _write(latent.unsqueeze(1), layer.latent, layer.scale, slot_mapping)
    _write(rope.unsqueeze(1), layer.rope, None, slot_mapping)


def rotate_and_write_kv(
    qkv: Tensor, num_heads: int, rotation: Rotation, layer: KvLayer, batch: AttentionBatch
) -> None:
    """Rotate queries and keys of qkv [T, H + 2 Hkv, D], store keys and values; see the reference.

    Two calls: what one pass would save stays in the CPU's cache anyway.
    """
    rotated = num_heads + layer.k.shape[2]
    apply_rope(qkv[:, :rotated], batch.positions, rotation.cos, rotation.sin, rotation.interleaved)
    write_kv(qkv[:, num_heads:rotated], qkv[:, rotated:], layer, batch.slot_mapping)


def rotate_and_write_latent(
    query: Tensor,
    latent_and_key: Tensor,
    norm: tuple[Tensor, float],
    rotation: Rotation,
    layer: LatentLayer,
    batch: AttentionBatch,
) -> None:
    """Rotate queries and keys, normalise and store latents; see the reference."""
    rank, rope_dim = layer.latent.shape[-1], layer.rope.shape[-1]
    key = latent_and_key[:, rank:]
    for rotary in (query[:, :, query.shape[-1] - rope_dim :], key.unsqueeze(1)):
        apply_rope(rotary, batch.positions, rotation.cos, rotation.sin, rotation.interleaved)
    write_latent(rms_norm(latent_and_key[:, :rank], *norm), key, layer, batch.slot_mapping)


def _write(x: Tensor, cache: Tensor, scale: Tensor | None, slot_mapping: Tensor) -> None:
    num_tokens, num_heads, dim = x.shape
    if x.stride(2) != 1:
        raise ValueError("a cache write needs a contiguous last dimension")
    lib().write_cache(
        x.data_ptr(), x.stride(0), x.stride(1), cache.data_ptr(),
        None if scale is None else scale.data_ptr(), slot_mapping.data_ptr(), num_tokens,
        num_heads, dim, activation_code(x), CODES[cache.dtype], torch.get_num_threads(),
    )  # fmt: skip
