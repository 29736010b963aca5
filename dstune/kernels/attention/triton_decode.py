"""Paged attention of sequences with one query each: the decode step with grouped-query attention.

Memory-bound: every key and value is read once, so the kernel is built around keeping loads in
flight. The query heads that share a KV head are the rows of one matrix product, padded to the 16
that tensor cores want; tokens are dealt to splits where sequences alone would not fill the GPU.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import math

import triton
import triton.language as tl
from torch import Tensor

from dstune.kernels.attention.triton_merge import merge_splits, plan_splits, workspace
from dstune.kernels.batch import AttentionBatch
from dstune.kernels.cache import KvLayer
from dstune.kernels.device import Gpu, gpu_of
from dstune.kernels.launch import ceil_div, launch, next_power_of_2

LOG2_E = math.log2(math.e)  # softmax is computed by exp2, one instruction
TILE_BYTES = 16_384  # of keys as they are multiplied, and as much of values
SCRATCH_BYTES = 8_192  # queries, weights, reductions: what a program needs beside its tiles
MAX_GROUP_ROWS = 64  # query heads of one program


def decode(
    q: Tensor, layer: KvLayer, batch: AttentionBatch, scale: float, num_seqs: int, out: Tensor
) -> None:
    """Attend for the first num_seqs sequences, whose queries are the first rows of q [T, H, D].

    Writes their rows of out [T, H, D]; a sequence without tokens gets zeros.
    """
    if num_seqs == 0:
        return
    _, num_heads, dim = q.shape
    num_kv_heads = layer.k.shape[2]
    group = num_heads // num_kv_heads
    block_h = min(MAX_GROUP_ROWS, max(16, next_power_of_2(group)))
    block_d = max(16, next_power_of_2(dim))
    q_bytes, cached_bytes = q.element_size(), layer.k.element_size()
    block_n = TILE_BYTES // (block_d * max(q_bytes, cached_bytes))
    block_n = min(128, max(16, block_n))
    gpu = gpu_of(q.device)
    elements = 2 * block_n * block_d
    num_stages, num_resident = _pipeline(elements * cached_bytes, elements * q_bytes, gpu)
    programs = num_kv_heads * ceil_div(group, block_h)
    splits = plan_splits(batch.host_kv_lens[:num_seqs], programs, gpu, num_resident)
    kept = workspace(out, num_seqs, splits.count)
    scales = [(0, 0, 0) if s is None else s.stride() for s in (layer.k_scale, layer.v_scale)]
    launch(
        decode_kernel, (programs, splits.count, num_seqs),
        out, kept.partial, kept.lse, q, layer.k, layer.v, layer.k_scale, layer.v_scale,
        batch.block_tables, batch.kv_lens, scale * LOG2_E, splits.min_tokens,
        *out.stride()[:2], *q.stride()[:2], batch.block_tables.stride(0), *layer.k.stride()[:3],
        *layer.v.stride()[:3], *scales[0], *scales[1],
        num_warps=4, num_stages=num_stages,
        GROUP=group, DIM=dim, BLOCK_SIZE=batch.block_size, SCALED=layer.k_scale is not None,
        SINGLE=splits.count == 1, BLOCK_H=block_h, BLOCK_D=block_d,
        BLOCK_N=block_n,
    )  # fmt: skip
    merge_splits(kept, out, splits.count)


def _pipeline(tile_bytes: int, multiplied_bytes: int, gpu: Gpu) -> tuple[int, int]:
    """Return pipeline stages, one more than the tiles in flight, and programs a multiprocessor.

    Two tiles in flight at least, three where they fit. 8-bit tiles are half as large, and are
    converted in shared memory: three programs rather than two keep as much in flight.
    """
    is_narrow = tile_bytes < multiplied_bytes
    kept = SCRATCH_BYTES + (multiplied_bytes if is_narrow else 0)
    for num_resident in (3, 2) if is_narrow else (2,):
        tiles = (gpu.shared_memory_bytes // num_resident - kept) // tile_bytes
        if tiles >= 2:
            return 1 + min(3, tiles), num_resident
    return 3, 1


@triton.jit
def load_blocks(table, tokens, end, BLOCK_SIZE: tl.constexpr):
    """The block ids of tokens below end."""
    at = tokens.to(tl.uint32) // BLOCK_SIZE  # unsigned: a shift, where signed takes four steps
    return tl.load(table + at, mask=tokens < end, other=0)


@triton.jit
def slots_of(lane, tokens, BLOCK_N: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Offsets within their blocks of a tile's tokens, which start at a multiple of BLOCK_N.

    Where blocks divide the tile they are the same for every tile, and not computed in the loop.
    """
    at = lane if BLOCK_N % BLOCK_SIZE == 0 else tokens
    return (at.to(tl.uint32) % BLOCK_SIZE).to(tl.int32)


@triton.jit
def load_rows(
    base,
    block,
    slot,
    stride_block,
    stride_slot,
    live,
    columns,
    has_column,
    DTYPE: tl.constexpr,
    IS_NARROW: tl.constexpr,
):
    """A tile of cached rows as DTYPE, zeros where there is none.

    The cache may exceed 2 ** 31 elements. Rows of 8-bit elements are summed over an axis of
    length 1, which changes nothing but the compiler's mind: otherwise it would convert them in
    the layout of the product, byte by byte, and not load asynchronously what two products use.
    """
    rows = base + block.to(tl.int64) * stride_block + slot * stride_slot
    if IS_NARROW:
        mask = live[None, :, None] & has_column[None, None, :]
        tile = tl.load(rows[None, :, None] + columns[None, None, :], mask=mask, other=0.0)
        tile = tl.sum(tile.to(DTYPE), 0)
    else:
        mask = live[:, None] & has_column[None, :]
        tile = tl.load(rows[:, None] + columns[None, :], mask=mask, other=0.0)
    return tile.to(DTYPE)


@triton.jit
def load_scales(base, block, slot, stride_block, stride_slot, live):
    """The scales of a tile's rows."""
    at = base + block.to(tl.int64) * stride_block + slot * stride_slot
    return tl.load(at, mask=live, other=0.0)


@triton.jit(do_not_specialize=["min_tokens", "stride_table"])
def decode_kernel(
    out_ptr,
    partial_ptr,
    lse_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    k_scale_ptr,
    v_scale_ptr,
    tables_ptr,
    kv_lens_ptr,
    scale,  # log2(e) included
    min_tokens,
    stride_out_row,
    stride_out_head,
    stride_q_row,
    stride_q_head,
    stride_table,
    stride_k_block,
    stride_k_slot,
    stride_k_head,
    stride_v_block,
    stride_v_slot,
    stride_v_head,
    stride_ks_block,
    stride_ks_slot,
    stride_ks_head,
    stride_vs_block,
    stride_vs_slot,
    stride_vs_head,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SCALED: tl.constexpr,
    SINGLE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """BLOCK_H query heads of one KV head over one split of one sequence's tokens.

    KV heads are the fastest axis of the grid: heads of a token lie side by side in memory.
    """
    part: tl.constexpr = (GROUP + BLOCK_H - 1) // BLOCK_H
    kv_head = tl.program_id(0) // part
    split = tl.program_id(1)
    num_splits = tl.num_programs(1)
    seq = tl.program_id(2).to(tl.int64)
    in_group = (tl.program_id(0) % part) * BLOCK_H + tl.arange(0, BLOCK_H)
    heads = kv_head * GROUP + in_group
    has_head = in_group < GROUP
    dims = tl.arange(0, BLOCK_D)
    has_dim = dims < DIM
    tile_mask = has_head[:, None] & has_dim[None, :]

    kv_len = tl.load(kv_lens_ptr + seq)
    per_split = tl.maximum((kv_len + num_splits - 1) // num_splits, min_tokens)
    per_split = (per_split + BLOCK_N - 1) // BLOCK_N * BLOCK_N
    begin = split * per_split
    end = tl.minimum(begin + per_split, kv_len)

    q_rows = q_ptr + seq * stride_q_row + heads * stride_q_head
    q = tl.load(q_rows[:, None] + dims[None, :], mask=tile_mask, other=0.0)
    table = tables_ptr + seq * stride_table
    k_head = k_ptr + kv_head * stride_k_head
    v_head = v_ptr + kv_head * stride_v_head
    largest = tl.full([BLOCK_H], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, BLOCK_D], tl.float32)
    lane = tl.arange(0, BLOCK_N)
    next_block = load_blocks(table, begin + lane, end, BLOCK_SIZE)
    for start in range(begin, end, BLOCK_N):
        tokens = start + lane
        live = tokens < end
        # Block ids come one tile ahead: loads that wait for one another are not kept in flight.
        block = next_block
        next_block = load_blocks(table, tokens + BLOCK_N, end, BLOCK_SIZE)
        slot = slots_of(lane, tokens, BLOCK_N, BLOCK_SIZE)
        k = load_rows(
            k_head, block, slot, stride_k_block, stride_k_slot, live, dims, has_dim, q.dtype, SCALED
        )
        v = load_rows(
            v_head, block, slot, stride_v_block, stride_v_slot, live, dims, has_dim, q.dtype, SCALED
        )

        # tf32x3 counts for fp32 alone: three tensor core products that keep fp32's precision
        scores = tl.dot(q, tl.trans(k), input_precision="tf32x3")
        if SCALED:
            base = k_scale_ptr + kv_head * stride_ks_head
            k_scale = load_scales(base, block, slot, stride_ks_block, stride_ks_slot, live)
            scores *= (k_scale * scale)[None, :]
        else:
            scores *= scale
        scores = tl.where(live[None, :], scores, -float("inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        shrink = tl.exp2(largest - new_largest)  # finite - finite, or -inf: a tile has a live token
        weights = tl.exp2(scores - new_largest[:, None])
        total = total * shrink + tl.sum(weights, 1)
        if SCALED:
            base = v_scale_ptr + kv_head * stride_vs_head
            v_scale = load_scales(base, block, slot, stride_vs_block, stride_vs_slot, live)
            weights *= v_scale[None, :]
        acc = acc * shrink[:, None]
        acc = tl.dot(weights.to(q.dtype), v, acc, input_precision="tf32x3")
        largest = new_largest

    has_any = total > 0.0
    total = tl.where(has_any, total, 1.0)
    acc = acc / total[:, None]
    if SINGLE:
        targets = out_ptr + seq * stride_out_row + heads * stride_out_head
        result = acc.to(out_ptr.dtype.element_ty)
        tl.store(targets[:, None] + dims[None, :], result, mask=tile_mask)
    else:
        num_heads = tl.num_programs(0) // part * GROUP
        at = (seq * num_heads + heads) * num_splits + split
        lse = tl.where(has_any, largest + tl.log2(total), -float("inf"))
        tl.store(lse_ptr + at, lse, mask=has_head)
        filled = tile_mask & has_any[:, None]
        tl.store(partial_ptr + at[:, None] * DIM + dims[None, :], acc, mask=filled)
