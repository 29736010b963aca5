"""Attention of many queries: one flash kernel for prefill over blocks and for dense keys.

`attention/triton.py` hands it the sequences of a step that have more than one query; DeepSeek's
expanded latents come in as dense keys. Blocks are read where they lie, so nothing that is allocated
here grows with the context. Source of the method: Dao, FlashAttention-2, arXiv:2307.08691.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from dstune.errors import UsageError
from dstune.kernels.batch import AttentionBatch
from dstune.kernels.cache import KvLayer
from dstune.kernels.device import Gpu, gpu_of
from dstune.kernels.launch import ceil_div, launch, next_power_of_2
from dstune.kernels.native.arguments import rows

# Kernels work on base-2 exponentials, which the hardware has.
_LOG2_E = tl.constexpr(math.log2(math.e))
_LN_2 = tl.constexpr(math.log(2.0))
# A weight times its value's scale is rounded to the activations' type. fp16 has no numbers near a
# scale of 1e-6, so scales are multiplied by this and the sum is divided by it, both exactly; a
# scale is at most 65504 / 127 there, so nothing overflows.
_V_SCALE_UNIT = tl.constexpr(64.0)


@triton.jit
def _attend(
    acc, largest, total, q, q_tail, end, last_seen, scale,
    k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table_ptr,
    k_block, k_token, v_block, v_token, scale_block, scale_token,
    DK: tl.constexpr, DV: tl.constexpr, DK_TILE: tl.constexpr, DK_TAIL: tl.constexpr,
    DV_TILE: tl.constexpr, TILE_N: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Fold the keys 0 .. end, tile by tile, into the running sums of a tile of queries.

    All tiles are masked: with a second loop for those that need no mask, registers spilled unless
    a tile held half as many keys.
    """
    dims = tl.arange(0, DK_TILE)
    value_dims = tl.arange(0, DV_TILE)
    lanes = tl.arange(0, TILE_N)
    for start in range(0, end, TILE_N):
        keys = start + lanes
        # What lies behind a sequence's last key may be NaN, and 0 * NaN is NaN: do not read it.
        is_key = keys < end
        # A tile that lies in one piece has a 64-bit base and 32-bit rows: registers are scarce.
        k_rows, v_rows, scale_rows = lanes * k_token, lanes * v_token, lanes * scale_token
        if BLOCK_SIZE == 0:
            first = tl.full((), start, tl.int64)
            k_tile, v_tile = k_ptr + first * k_token, v_ptr + first * v_token
        elif BLOCK_SIZE % TILE_N == 0:
            block = tl.load(table_ptr + start // BLOCK_SIZE).to(tl.int64)
            offset = start % BLOCK_SIZE
            k_tile = k_ptr + block * k_block + offset * k_token
            v_tile = v_ptr + block * v_block + offset * v_token
            scale_rows += block * scale_block + offset * scale_token
        else:
            block = tl.load(table_ptr + keys // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
            offset = keys % BLOCK_SIZE
            k_tile, v_tile = k_ptr, v_ptr
            k_rows = block * k_block + offset * k_token
            v_rows = block * v_block + offset * v_token
            scale_rows = block * scale_block + offset * scale_token
        k = tl.load(
            k_tile + (k_rows[:, None] + dims[None, :]),
            mask=is_key[:, None] & (dims[None, :] < DK),
            other=0.0,
        )
        scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision=PRECISION)
        if DK_TAIL > 0:
            tail = DK_TILE + tl.arange(0, DK_TAIL)
            k_tail = tl.load(
                k_tile + (k_rows[:, None] + tail[None, :]),
                mask=is_key[:, None] & (tail[None, :] < DK),
                other=0.0,
            )
            scores = tl.dot(q_tail, tl.trans(k_tail.to(q.dtype)), scores, input_precision=PRECISION)
        if k_scale_ptr is not None:
            k_scale = tl.load(k_scale_ptr + scale_rows, mask=is_key, other=0.0)
            scores = scores * k_scale[None, :]
        scores = tl.where(keys[None, :] <= last_seen[:, None], scores, float("-inf"))
        # scale > 0, so the largest score is the largest product; the exponent is one multiply-add
        now_largest = tl.maximum(largest, tl.max(scores, 1) * scale)
        # a row that has seen no key: exp2(-inf - 0) is 0, -inf - -inf would be NaN
        base = tl.where(now_largest == float("-inf"), 0.0, now_largest)
        weights = tl.exp2(scores * scale - base[:, None])
        shrink = tl.exp2(largest - base)
        largest = now_largest
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None]
        v = tl.load(
            v_tile + (v_rows[:, None] + value_dims[None, :]),
            mask=is_key[:, None] & (value_dims[None, :] < DV),
            other=0.0,
        )
        if v_scale_ptr is not None:
            v_scale = tl.load(v_scale_ptr + scale_rows, mask=is_key, other=0.0)
            weights = weights * (v_scale * _V_SCALE_UNIT)[None, :]
        acc = tl.dot(weights.to(q.dtype), v.to(q.dtype), acc, input_precision=PRECISION)
    return acc, largest, total


# Lengths change from step to step; none of them is worth a version of the kernel.
@triton.jit(do_not_specialize=["table_seq", "first_seq", "num_queries", "num_keys", "diagonal"])
def _flash(
    q_ptr, k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, out_ptr, lse_ptr,
    query_start_ptr, kv_lens_ptr, table_ptr,
    q_token, q_head, k_block, k_token, k_head, v_block, v_token, v_head,
    scale_block, scale_token, out_token, table_seq,
    first_seq, num_queries, num_keys, diagonal, scale,
    GROUP: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, DK_TILE: tl.constexpr,
    DK_TAIL: tl.constexpr, DV_TILE: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of one sequence's rows for one kv head; a row is a query and a head of the group.

    BLOCK_SIZE 0 means dense keys and one sequence. The last tiles, which see the most keys, start
    first.
    """
    kv_head = tl.program_id(1).to(tl.int64)
    first_token = tl.full((), 0, tl.int64)
    if BLOCK_SIZE > 0:
        seq = first_seq + tl.program_id(2)
        start = tl.load(query_start_ptr + seq)
        num_queries = tl.load(query_start_ptr + seq + 1) - start
        num_keys = tl.load(kv_lens_ptr + seq)
        diagonal = num_keys - num_queries
        first_token += start
        table_ptr += seq.to(tl.int64) * table_seq
    first_row = (tl.num_programs(0) - 1 - tl.program_id(0)) * TILE_M
    if first_row >= num_queries * GROUP:
        return
    tile_rows = first_row + tl.arange(0, TILE_M)
    queries = tile_rows // GROUP
    is_row = queries < num_queries
    tokens = first_token + queries
    heads = kv_head * GROUP + tile_rows % GROUP
    dims = tl.arange(0, DK_TILE)
    q_rows = q_ptr + tokens * q_token + heads * q_head
    q = tl.load(
        q_rows[:, None] + dims[None, :], mask=is_row[:, None] & (dims[None, :] < DK), other=0.0
    )
    q_tail = q
    if DK_TAIL > 0:
        tail = DK_TILE + tl.arange(0, DK_TAIL)
        q_tail = tl.load(
            q_rows[:, None] + tail[None, :], mask=is_row[:, None] & (tail[None, :] < DK), other=0.0
        )

    last_query = tl.minimum((first_row + TILE_M - 1) // GROUP, num_queries - 1)
    end = tl.maximum(tl.minimum(diagonal + last_query + 1, num_keys), 0)  # what the last one sees
    last_seen = tl.minimum(diagonal + queries, num_keys - 1)

    k_ptr += kv_head * k_head
    v_ptr += kv_head * v_head
    if k_scale_ptr is not None:
        k_scale_ptr += kv_head
        v_scale_ptr += kv_head
    largest = tl.full((TILE_M,), float("-inf"), tl.float32)
    total = tl.zeros((TILE_M,), tl.float32)
    acc = tl.zeros((TILE_M, DV_TILE), tl.float32)
    exponent_scale = scale * _LOG2_E
    acc, largest, total = _attend(
        acc, largest, total, q, q_tail, end, last_seen, exponent_scale,
        k_ptr, v_ptr, k_scale_ptr, v_scale_ptr, table_ptr,
        k_block, k_token, v_block, v_token, scale_block, scale_token,
        DK, DV, DK_TILE, DK_TAIL, DV_TILE, TILE_N, BLOCK_SIZE, PRECISION,
    )  # fmt: skip

    total = tl.where(total == 0.0, 1.0, total)  # a row that saw no key is zero
    unit = total
    if v_scale_ptr is not None:
        unit = total * _V_SCALE_UNIT
    out = acc / unit[:, None]
    value_dims = tl.arange(0, DV_TILE)
    out_rows = out_ptr + tokens * out_token + heads * DV
    tl.store(
        out_rows[:, None] + value_dims[None, :],
        out.to(out_ptr.dtype.element_ty),
        mask=is_row[:, None] & (value_dims[None, :] < DV),
    )
    if lse_ptr is not None:
        num_heads = out_token // DV
        lse = (largest + tl.log2(total)) * _LN_2
        tl.store(lse_ptr + tokens * num_heads + heads, lse, mask=is_row)


@dataclass(frozen=True)
class _Tiles:
    """Rows and keys of a tile, and how the hardware works on it."""

    m: int
    n: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class _Dims:
    """Dimensions of a head, and the powers of two that cover them."""

    key: int
    value: int

    @property
    def key_tiles(self) -> tuple[int, int]:
        """One tile or, where that saves work, a tile and a narrower tail: 192 = 128 + 64."""
        whole = max(16, next_power_of_2(self.key))
        head = max(16, whole // 2)
        tail = max(16, next_power_of_2(self.key - head)) if self.key > head else 0
        return (head, tail) if head + tail < whole else (whole, 0)

    @property
    def value_tile(self) -> int:
        return max(16, next_power_of_2(self.value))


def _tiles(dims: _Dims, num_rows: int, dtype: torch.dtype, cache: torch.dtype, gpu: Gpu) -> _Tiles:
    """Choose tiles for sequences of up to num_rows rows a kv head.

    The largest that were compiled without a spill, by Triton 3.7 as well as 3.9. Hopper's warp
    groups read keys and values from shared memory, where Ampere's warps hold all of a tile in
    registers.
    """
    is_narrow = cache.itemsize < dtype.itemsize
    m = 128 if num_rows > 64 else 64 if num_rows > 16 else 16
    num_warps = 8 if m == 128 else 4
    shapes = [(64, 3), (64, 2), (32, 2)]
    if dtype == torch.float32:  # without tensor cores: exact, and slow anyway
        m, num_warps, shapes = 16, 4, [(32, 2), (16, 2)]
        if is_narrow:
            num_warps, shapes = 8, [(16, 2)]
    elif dims.value_tile > 128:
        m, num_warps, shapes = 16, 8, [(32, 2), (16, 2)]
    elif gpu.capability < 90 and dims.value_tile > 64:
        shapes = [(16, 3)] if is_narrow else [(32, 3), (32, 2)]
    elif gpu.capability < 90 and is_narrow:
        shapes = [(32, 3), (32, 2)]
    width = sum(dims.key_tiles) + dims.value_tile
    q_bytes = m * sum(dims.key_tiles) * dtype.itemsize
    for n, num_stages in shapes:
        kv_bytes = n * width * cache.itemsize * num_stages
        # narrow keys and values are converted into a buffer of their own
        converted_bytes = n * width * dtype.itemsize if is_narrow else 0
        if q_bytes + kv_bytes + converted_bytes <= gpu.shared_memory_bytes - 1024:
            return _Tiles(m, n, num_warps, num_stages)
    raise UsageError(
        f"attention heads of {dims.key} and {dims.value} dimensions do not fit in {gpu.name}"
    )


def paged_prefill(
    q: Tensor,
    layer: KvLayer,
    batch: AttentionBatch,
    scale: float,
    first_seq: int,
    out: Tensor,
) -> None:
    """Attend for the sequences first_seq .. of a batch: q [T, H, D] -> their rows of out [T, H, D].

    Chunks of any length read their whole context from its blocks. `out` is contiguous; rows of
    other sequences and padding stay as they are. scale > 0.
    """
    num_queries = max(batch.host_query_lens[first_seq:], default=0)
    num_seqs = len(batch.host_query_lens) - first_seq
    q = rows(q)
    _, num_heads, dim = q.shape
    num_kv_heads = layer.k.shape[2]
    group = num_heads // num_kv_heads
    dims = _Dims(dim, dim)
    tiles = _tiles(dims, num_queries * group, q.dtype, layer.k.dtype, gpu_of(q.device))
    scales = (0, 0) if layer.k_scale is None else layer.k_scale.stride()[:2]
    key_tile, key_tail = dims.key_tiles
    launch(
        _flash,
        (ceil_div(num_queries * group, tiles.m), num_kv_heads, num_seqs),
        q, layer.k, layer.v, layer.k_scale, layer.v_scale, out, None,
        batch.query_start, batch.kv_lens, batch.block_tables,
        q.stride(0), q.stride(1), *layer.k.stride()[:3], *layer.v.stride()[:3],
        *scales, out.stride(0), batch.block_tables.stride(0), first_seq, 0, 0, 0, scale,
        GROUP=group, DK=dim, DV=dim, DK_TILE=key_tile, DK_TAIL=key_tail,
        DV_TILE=dims.value_tile, TILE_M=tiles.m, TILE_N=tiles.n, BLOCK_SIZE=batch.block_size,
        PRECISION="ieee", num_warps=tiles.num_warps, num_stages=tiles.num_stages,
    )  # fmt: skip


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    diagonal: int | None = None,
    lse: Tensor | None = None,
) -> Tensor:
    """Attend causally: q [Tq, H, Dk], k [Tk, Hkv, Dk], v [Tk, Hkv, Dv] -> [Tq, H, Dv].

    See the reference for `diagonal` and `lse`. scale > 0.
    """
    if lse is not None and (lse.dtype != torch.float32 or not lse.is_contiguous()):
        raise UsageError(f"lse must be contiguous fp32, not {lse.dtype}, strides {lse.stride()}")
    q, k, v = rows(q), rows(k), rows(v)
    num_queries, num_heads, key_dim = q.shape
    num_keys, num_kv_heads, value_dim = v.shape
    group = num_heads // num_kv_heads
    if diagonal is None:
        diagonal = num_keys - num_queries
    diagonal = max(-num_queries, min(diagonal, num_keys))  # beyond these nothing changes
    out = q.new_empty(num_queries, num_heads, value_dim)
    dims = _Dims(key_dim, value_dim)
    tiles = _tiles(dims, num_queries * group, q.dtype, k.dtype, gpu_of(q.device))
    key_tile, key_tail = dims.key_tiles
    launch(
        _flash,
        (ceil_div(num_queries * group, tiles.m), num_kv_heads, 1),
        q, k, v, None, None, out, lse, None, None, None,
        q.stride(0), q.stride(1), 0, k.stride(0), k.stride(1), 0, v.stride(0), v.stride(1),
        0, 0, out.stride(0), 0, 0, num_queries, num_keys, diagonal, scale,
        GROUP=group, DK=key_dim, DV=value_dim, DK_TILE=key_tile, DK_TAIL=key_tail,
        DV_TILE=dims.value_tile, TILE_M=tiles.m, TILE_N=tiles.n, BLOCK_SIZE=0,
        PRECISION="ieee", num_warps=tiles.num_warps, num_stages=tiles.num_stages,
    )  # fmt: skip
    return out
