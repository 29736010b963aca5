"""Cache writes as native calls; reading latents stays with torch, it only serves prefill."""

import torch
from torch import Tensor

from dstune.kernels.batch import AttentionBatch, Rotation
from dstune.kernels.cache import KvLayer, LatentLayer
from dstune.kernels.cache_io.reference import gather_latent
from dstune.kernels.native import lib
from dstune.kernels.native.arguments import CODES, activation_code, like, pointer

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
    """Rotate queries and keys of qkv [T, H + 2 Hkv, D], store keys, values; see the reference."""
    num_tokens, rows, dim = qkv.shape
    token_stride, head_stride, last = qkv.stride()
    _check_rows(last)
    keys = layer.k
    num_kv_heads = keys.shape[2]
    if rows != num_heads + 2 * num_kv_heads:
        raise ValueError(f"{rows} heads of qkv are not {num_heads} + 2 * {num_kv_heads}")
    lib().rotate_and_write_kv(
        qkv.data_ptr(), token_stride, head_stride, num_heads, num_kv_heads, dim,
        batch.positions.data_ptr(), rotation.cos.data_ptr(), rotation.sin.data_ptr(),
        rotation.interleaved, keys.data_ptr(), layer.v.data_ptr(), pointer(layer.k_scale),
        pointer(layer.v_scale), batch.slot_mapping.data_ptr(), num_tokens, activation_code(qkv),
        CODES[keys.dtype], torch.get_num_threads(),
    )  # fmt: skip


def rotate_and_write_latent(
    query: Tensor,
    latent_and_key: Tensor,
    norm: tuple[Tensor, float],
    rotation: Rotation,
    layer: LatentLayer,
    batch: AttentionBatch,
) -> None:
    """Rotate queries and keys, normalise and store latents; see the reference."""
    num_tokens, num_heads, query_dim = query.shape
    token_stride, head_stride, last = query.stride()
    _check_rows(last)
    latent_stride, last = latent_and_key.stride()
    _check_rows(last)
    if latent_and_key.dtype != query.dtype:
        raise ValueError(f"latents are {latent_and_key.dtype}, queries {query.dtype}, not alike")
    latents, keys = layer.latent, layer.rope
    rank, rope_dim, width = latents.shape[2], keys.shape[2], latent_and_key.shape[1]
    if width != rank + rope_dim:
        raise ValueError(f"{width} columns of latents and keys are not {rank} + {rope_dim}")
    weight, eps = norm
    weight = like(weight, query)
    lib().rotate_and_write_latent(
        query.data_ptr(), token_stride, head_stride, num_heads, query_dim,
        latent_and_key.data_ptr(), latent_stride, rank, rope_dim,
        weight.data_ptr(), eps, batch.positions.data_ptr(), rotation.cos.data_ptr(),
        rotation.sin.data_ptr(), rotation.interleaved, latents.data_ptr(), keys.data_ptr(),
        pointer(layer.scale), batch.slot_mapping.data_ptr(), num_tokens, activation_code(query),
        CODES[latents.dtype], CODES[keys.dtype], torch.get_num_threads(),
    )  # fmt: skip


def _write(x: Tensor, cache: Tensor, scale: Tensor | None, slot_mapping: Tensor) -> None:
    num_tokens, num_heads, dim = x.shape
    token_stride, head_stride, last = x.stride()
    _check_rows(last)
    lib().write_cache(
        x.data_ptr(), token_stride, head_stride, cache.data_ptr(), pointer(scale),
        slot_mapping.data_ptr(), num_tokens, num_heads, dim, activation_code(x),
        CODES[cache.dtype], torch.get_num_threads(),
    )  # fmt: skip


def _check_rows(last_stride: int) -> None:
    if last_stride != 1:
        raise ValueError("a cache write needs a contiguous last dimension")
