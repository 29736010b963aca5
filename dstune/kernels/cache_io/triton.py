"""Cache writes as Triton kernels; reading latents stays with torch, it only serves prefill.

The fused writes are what the models call, one launch each: what is rotated, normalised and
quantised goes from registers to the cache. Offsets into a cache are 64 bits wide: a big one has
more than 2^31 elements.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from torch import Tensor

from dstune.kernels.batch import AttentionBatch, Rotation
from dstune.kernels.cache import KvLayer, LatentLayer
from dstune.kernels.cache_io import reference
from dstune.kernels.cache_io.reference import gather_latent
from dstune.kernels.launch import ceil_div, launch, next_power_of_2
from dstune.kernels.norm.triton import normalised
from dstune.kernels.rope.triton import (
    check_tables,
    load_angles,
    load_pairs,
    rotated,
    store_pairs,
    tile,
)
from dstune.kernels.rounding import quantise, row_scale

__all__ = [
    "gather_latent",
    "rotate_and_write_kv",
    "rotate_and_write_latent",
    "write_kv",
    "write_latent",
]

MIN_SCALE = tl.constexpr(reference.MIN_SCALE)


def write_kv(k: Tensor, v: Tensor, layer: KvLayer, slot_mapping: Tensor) -> None:
    """Store k, v [T, Hkv, D], which may be strided views; see the reference."""
    _write(k, layer.k, layer.k_scale, slot_mapping)
    _write(v, layer.v, layer.v_scale, slot_mapping)


def write_latent(latent: Tensor, rope: Tensor, layer: LatentLayer, slot_mapping: Tensor) -> None:
    """Store latent [T, R] and rope [T, P], which may be strided views; see the reference."""
    scale = None if layer.scale is None else layer.scale.unsqueeze(2)
    _write(latent.unsqueeze(1), layer.latent.unsqueeze(2), scale, slot_mapping)
    _write(rope.unsqueeze(1), layer.rope.unsqueeze(2), None, slot_mapping)


def rotate_and_write_kv(
    qkv: Tensor, num_heads: int, rotation: Rotation, layer: KvLayer, batch: AttentionBatch
) -> None:
    """Rotate queries and keys of qkv [T, H + 2 Hkv, D], store keys and values; see the reference.

    A program holds some heads of one token, of whatever kinds.
    """
    _check_contiguous(qkv)
    num_tokens, all_heads, dim = qkv.shape
    check_tables(rotation.cos, rotation.sin, dim)
    block, num_heads_each, num_warps = tile(all_heads, dim)
    k_scale, v_scale = _or(layer.k_scale, layer.k), _or(layer.v_scale, layer.v)
    launch(
        _rotate_and_write_kv, (num_tokens, ceil_div(all_heads, num_heads_each)),
        qkv, batch.positions, rotation.cos, rotation.sin, batch.slot_mapping,
        layer.k, layer.v, k_scale, v_scale, qkv.stride(0), qkv.stride(1),
        layer.k.stride(1), layer.k.stride(2), layer.v.stride(1), layer.v.stride(2),
        k_scale.stride(1), v_scale.stride(1), num_heads, layer.k.shape[2],
        HALF=dim // 2, BLOCK=block, HEADS=num_heads_each, INTERLEAVED=rotation.interleaved,
        SCALED=layer.k_scale is not None, num_warps=num_warps,
    )  # fmt: skip


def rotate_and_write_latent(
    query: Tensor,
    latent_and_key: Tensor,
    norm: tuple[Tensor, float],
    rotation: Rotation,
    layer: LatentLayer,
    batch: AttentionBatch,
) -> None:
    """Rotate queries, normalise latents, rotate keys, store latents and keys; see the reference.

    The first program of a token writes the cache, the others rotate some query heads each.
    """
    _check_contiguous(query, latent_and_key)
    num_tokens, num_heads, query_dim = query.shape
    rank, rope_dim = layer.latent.shape[-1], layer.rope.shape[-1]
    check_tables(rotation.cos, rotation.sin, rope_dim)
    block, num_heads_each, num_warps = tile(num_heads, rope_dim)
    rotary = query[:, :, query_dim - rope_dim :]
    weight, eps = norm
    scale = _or(layer.scale, layer.latent)
    launch(
        _rotate_and_write_latent, (num_tokens, 1 + ceil_div(num_heads, num_heads_each)),
        rotary, latent_and_key, latent_and_key[:, rank:], weight.contiguous(), batch.positions,
        rotation.cos, rotation.sin, batch.slot_mapping, layer.latent, layer.rope, scale,
        query.stride(0), query.stride(1), latent_and_key.stride(0), layer.latent.stride(1),
        layer.rope.stride(1), scale.stride(1), num_heads,
        EPS=eps, RANK=rank, RANK_BLOCK=next_power_of_2(rank), HALF=rope_dim // 2, BLOCK=block,
        HEADS=num_heads_each, INTERLEAVED=rotation.interleaved,
        SCALED=layer.scale is not None, num_warps=num_warps,
    )  # fmt: skip


def _write(x: Tensor, cache: Tensor, scale: Tensor | None, slot_mapping: Tensor) -> None:
    _check_contiguous(x)
    num_tokens, num_heads, dim = x.shape
    block = next_power_of_2(dim)
    num_heads_each = min(next_power_of_2(num_heads), max(1, 2048 // block))
    scales = _or(scale, cache)
    launch(
        _write_rows, (num_tokens, ceil_div(num_heads, num_heads_each)),
        x, slot_mapping, cache, scales, x.stride(0), x.stride(1), cache.stride(1),
        cache.stride(2), scales.stride(1), num_heads,
        DIM=dim, BLOCK=block, HEADS=num_heads_each, SCALED=scale is not None,
        num_warps=min(max(1, num_heads_each * block // 512), 8),
    )  # fmt: skip


def _check_contiguous(*inputs: Tensor) -> None:
    if any(x.stride(-1) != 1 and x.shape[-1] > 1 for x in inputs):
        raise ValueError("a cache write needs a contiguous last dimension")


def _or(scale: Tensor | None, cache: Tensor) -> Tensor:
    """Return what stands for the scales: a cache without them passes itself, unread."""
    return cache if scale is None else scale


@triton.jit
def _write_rows(
    x, slots, cache, scales, stride_token, stride_head, stride_slot, stride_cache_head,
    stride_scale, num_heads, DIM: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr,
    SCALED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    if slot >= 0:
        head = (tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]).to(tl.int64)
        column = tl.arange(0, BLOCK)[None, :]
        inside = (head < num_heads) & (column < DIM)
        at = x + token * stride_token + head * stride_head + column
        values = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        if SCALED:
            largest = tl.max(tl.abs(values), axis=1, keep_dims=True)
            scale = row_scale(largest, MIN_SCALE, cache.dtype.element_ty)
            values = quantise(values, scale, cache.dtype.element_ty)
            tl.store(scales + slot * stride_scale + head, scale, mask=head < num_heads)
        at = cache + slot * stride_slot + head * stride_cache_head + column
        tl.store(at, values.to(cache.dtype.element_ty), mask=inside)


@triton.jit
def _rotate_and_write_kv(
    qkv, positions, cos, sin, slots, k_cache, v_cache, k_scales, v_scales,
    stride_token, stride_head, stride_k_slot, stride_k_head, stride_v_slot, stride_v_head,
    stride_k_scale, stride_v_scale, num_heads, num_kv_heads,
    HALF: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr, INTERLEAVED: tl.constexpr,
    SCALED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * HEADS
    head = (first + tl.arange(0, HEADS)[:, None]).to(tl.int64)
    heads = qkv + token * stride_token + head * stride_head
    keep = head < num_heads + 2 * num_kv_heads
    a, b = load_pairs(heads, keep, HALF, BLOCK, HEADS, INTERLEAVED)
    c, s = load_angles(cos, sin, tl.load(positions + token), HALF, BLOCK)
    turned_a, turned_b = rotated(a, b, c, s)
    is_turned = head < num_heads + num_kv_heads
    # The reference rotates in place, so keys too are rounded to the activations' type.
    a = tl.where(is_turned, turned_a, a).to(qkv.dtype.element_ty)
    b = tl.where(is_turned, turned_b, b).to(qkv.dtype.element_ty)
    store_pairs(heads, head < num_heads, a, b, HALF, BLOCK, HEADS, INTERLEAVED)
    slot = tl.load(slots + token).to(tl.int64)
    if (first + HEADS > num_heads) & (slot >= 0):
        k_head = head - num_heads
        v_head = k_head - num_kv_heads
        is_k = (k_head >= 0) & (v_head < 0)
        is_v = keep & (v_head >= 0)
        first_stored, second_stored = a, b
        if SCALED:
            a32, b32 = a.to(tl.float32), b.to(tl.float32)
            largest = tl.max(tl.maximum(tl.abs(a32), tl.abs(b32)), axis=1, keep_dims=True)
            scale = row_scale(largest, MIN_SCALE, k_cache.dtype.element_ty)
            first_stored = quantise(a32, scale, k_cache.dtype.element_ty)
            second_stored = quantise(b32, scale, k_cache.dtype.element_ty)
            tl.store(k_scales + slot * stride_k_scale + k_head, scale, mask=is_k)
            tl.store(v_scales + slot * stride_v_scale + v_head, scale, mask=is_v)
        k_heads = k_cache + slot * stride_k_slot + k_head * stride_k_head
        v_heads = v_cache + slot * stride_v_slot + v_head * stride_v_head
        store_pairs(
            k_heads, is_k, first_stored, second_stored, HALF, BLOCK, HEADS, INTERLEAVED
        )  # fmt: skip
        store_pairs(
            v_heads, is_v, first_stored, second_stored, HALF, BLOCK, HEADS, INTERLEAVED
        )  # fmt: skip


@triton.jit
def _rotate_and_write_latent(
    query, latents, keys, weight, positions, cos, sin, slots, latent_cache, rope_cache, scales,
    stride_token, stride_head, stride_latent, stride_slot, stride_rope_slot, stride_scale,
    num_heads, EPS: tl.constexpr, RANK: tl.constexpr, RANK_BLOCK: tl.constexpr,
    HALF: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr, INTERLEAVED: tl.constexpr,
    SCALED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    c, s = load_angles(cos, sin, tl.load(positions + token), HALF, BLOCK)
    slot = tl.load(slots + token).to(tl.int64)
    if part > 0:
        head = ((part - 1) * HEADS + tl.arange(0, HEADS)[:, None]).to(tl.int64)
        heads = query + token * stride_token + head * stride_head
        a, b = load_pairs(heads, head < num_heads, HALF, BLOCK, HEADS, INTERLEAVED)
        a, b = rotated(a, b, c, s)
        store_pairs(heads, head < num_heads, a, b, HALF, BLOCK, HEADS, INTERLEAVED)
    elif slot >= 0:
        one = tl.zeros((1, 1), tl.int64)  # makes a row of what would be a scalar
        key = keys + token * stride_latent + one
        a, b = load_pairs(key, one == 0, HALF, BLOCK, 1, INTERLEAVED)
        a, b = rotated(a, b, c, s)
        a, b = a.to(keys.dtype.element_ty), b.to(keys.dtype.element_ty)
        at = rope_cache + slot * stride_rope_slot + one
        store_pairs(at, one == 0, a, b, HALF, BLOCK, 1, INTERLEAVED)
        column = tl.arange(0, RANK_BLOCK)[None, :]
        inside = column < RANK
        values = tl.load(latents + token * stride_latent + column, mask=inside, other=0.0)
        weights = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
        values = normalised(values.to(tl.float32), weights, EPS, RANK)
        values = values.to(latents.dtype.element_ty)  # as the reference's norm returns it
        if SCALED:
            values = values.to(tl.float32)
            largest = tl.max(tl.abs(values), axis=1, keep_dims=True)
            scale = row_scale(largest, MIN_SCALE, latent_cache.dtype.element_ty)
            values = quantise(values, scale, latent_cache.dtype.element_ty)
            tl.store(scales + slot * stride_scale + one, scale)
        at = latent_cache + slot * stride_slot + column
        tl.store(at, values.to(latent_cache.dtype.element_ty), mask=inside)
