"""Attention in the latent space (absorbed MLA) over the paged cache: decode and short chunks.

All heads share one latent per token, which is key and value at once: a tile of it is loaded once
and multiplied twice. The rows of a program are pairs of query and head, head fastest, so that one
kernel serves a decode step (rows are heads) and several queries alike. Source: DeepSeek-V2,
section 2.1.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from dstune.kernels.attention.triton_decode import (
    LOG2_E,
    load_blocks,
    load_rows,
    load_scales,
    slots_of,
)
from dstune.kernels.attention.triton_merge import merge_splits, plan_splits, workspace
from dstune.kernels.batch import AttentionBatch
from dstune.kernels.cache import LatentLayer
from dstune.kernels.device import Gpu, gpu_of
from dstune.kernels.launch import ceil_div, launch, next_power_of_2
from dstune.kernels.native.arguments import rows

SCRATCH_BYTES = 4_096  # weights and reductions, beside queries and tiles
NUM_RESIDENT = 1  # programs on a multiprocessor: accumulators of rank 512 fill its registers


@dataclass(frozen=True)
class _Tile:
    """Sizes of one program and how it runs."""

    num_rows: int  # (query, head) pairs
    num_tokens: int
    num_warps: int
    num_stages: int  # one more than the tiles that wait in shared memory


@dataclass(frozen=True)
class _Row:
    """Padded sizes of what a program keeps of a query row and of a token."""

    query_bytes: int
    token_bytes: int  # as cached
    converted_bytes: int  # of an 8-bit latent once it is multiplied, else 0


def latent_attention(
    q_latent: Tensor, q_rope: Tensor, layer: LatentLayer, batch: AttentionBatch, scale: float
) -> Tensor:
    """Attend in the latent space: q_latent [T, H, R], q_rope [T, H, P] -> [T, H, R]."""
    q_latent, q_rope = rows(q_latent), rows(q_rope)
    num_tokens, num_heads, rank = q_latent.shape
    rope_dim = q_rope.shape[2]
    out = q_latent.new_empty(num_tokens, num_heads, rank)
    total = sum(batch.host_query_lens)
    if total < num_tokens:
        out[total:].zero_()
    if total == 0:
        return out
    gpu = gpu_of(q_latent.device)
    block_r, block_p = (max(16, next_power_of_2(n)) for n in (rank, rope_dim))
    rows_per_seq = max(batch.host_query_lens) * num_heads
    q_bytes, cached_bytes = q_latent.element_size(), layer.latent.element_size()
    row = _Row(
        query_bytes=(block_r + block_p) * q_bytes,
        token_bytes=block_r * cached_bytes + block_p * layer.rope.element_size(),
        converted_bytes=block_r * q_bytes if cached_bytes == 1 else 0,
    )
    tile = _tile(row, rows_per_seq, q_bytes, gpu)
    programs = ceil_div(rows_per_seq, tile.num_rows)
    splits = plan_splits(batch.host_kv_lens, programs, gpu, NUM_RESIDENT)
    kept = workspace(out, total, splits.count)
    scale_strides = (0, 0) if layer.scale is None else layer.scale.stride()
    launch(
        latent_kernel, (programs, splits.count, len(batch.host_kv_lens)),
        out, kept.partial, kept.lse, q_latent, q_rope, layer.latent, layer.rope, layer.scale,
        batch.block_tables, batch.kv_lens, batch.query_start, scale * LOG2_E, splits.min_tokens,
        *out.stride()[:2], *q_latent.stride()[:2], *q_rope.stride()[:2],
        batch.block_tables.stride(0), *layer.latent.stride()[:2], *layer.rope.stride()[:2],
        *scale_strides, num_warps=tile.num_warps, num_stages=tile.num_stages,
        HEADS=num_heads, RANK=rank, ROPE=rope_dim, BLOCK_SIZE=batch.block_size,
        SCALED=layer.scale is not None, SINGLE=splits.count == 1, BLOCK_M=tile.num_rows,
        BLOCK_R=block_r, BLOCK_P=block_p, BLOCK_N=tile.num_tokens,
    )  # fmt: skip
    merge_splits(kept, out, splits.count)
    return out


def _tile(row: _Row, rows_per_seq: int, q_bytes: int, gpu: Gpu) -> _Tile:
    """Choose the tile, within registers (compiled for sm_80 and sm_90) and shared memory.

    Few heads are bound by memory: two or three tiles in flight. Many heads are bound by
    arithmetic: 32 rows share what is read from shared memory. 8-bit latents take the registers
    of the other 16 rows; fp32 is for being right, not fast.
    """

    def waiting(num_rows: int, num_tokens: int) -> int:
        kept = num_rows * row.query_bytes + num_tokens * row.converted_bytes + SCRATCH_BYTES
        return (gpu.shared_memory_bytes - kept) // (num_tokens * row.token_bytes)

    is_many = rows_per_seq > 16 and not row.converted_bytes and q_bytes < 4
    num_rows = 32 if is_many else 16
    if q_bytes == 4:
        num_tokens = 16
    else:
        num_tokens = 64 if waiting(num_rows, 64) >= (1 if is_many else 2) else 32
    most = 1 if q_bytes == 4 else 2 if is_many else 3
    num_tiles = max(1, min(waiting(num_rows, num_tokens), most))
    return _Tile(num_rows, num_tokens, num_warps=8, num_stages=1 + num_tiles)


@triton.jit(do_not_specialize=["min_tokens", "stride_table"])
def latent_kernel(
    out_ptr,
    partial_ptr,
    lse_ptr,
    q_latent_ptr,
    q_rope_ptr,
    latent_ptr,
    rope_ptr,
    scale_ptr,
    tables_ptr,
    kv_lens_ptr,
    query_start_ptr,
    scale,  # log2(e) included
    min_tokens,
    stride_out_row,
    stride_out_head,
    stride_ql_row,
    stride_ql_head,
    stride_qr_row,
    stride_qr_head,
    stride_table,
    stride_l_block,
    stride_l_slot,
    stride_r_block,
    stride_r_slot,
    stride_s_block,
    stride_s_slot,
    HEADS: tl.constexpr,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SCALED: tl.constexpr,
    SINGLE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """BLOCK_M (query, head) pairs of one sequence over one split of its tokens.

    Row blocks are the fastest axis of the grid: they read the same latents, from L2 but once.
    """
    split = tl.program_id(1)
    num_splits = tl.num_programs(1)
    seq = tl.program_id(2).to(tl.int64)
    first_row = tl.load(query_start_ptr + seq)
    query_len = tl.load(query_start_ptr + seq + 1) - first_row
    pair = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    query = pair // HEADS
    head = pair % HEADS
    has_pair = query < query_len
    row = (first_row + query).to(tl.int64)

    kv_len = tl.load(kv_lens_ptr + seq)
    per_split = tl.maximum((kv_len + num_splits - 1) // num_splits, min_tokens)
    per_split = (per_split + BLOCK_N - 1) // BLOCK_N * BLOCK_N
    begin = split * per_split
    visible = kv_len - query_len + query + 1  # tokens that each row sees
    last_query = tl.minimum((tl.program_id(0) * BLOCK_M + BLOCK_M - 1) // HEADS, query_len - 1)
    end = tl.minimum(begin + per_split, kv_len - query_len + last_query + 1)
    # row blocks past a sequence's own queries, where others have more, have nothing to do
    end = tl.where(tl.program_id(0) * BLOCK_M < query_len * HEADS, tl.maximum(end, begin), begin)

    ranks = tl.arange(0, BLOCK_R)
    has_rank = ranks < RANK
    ropes = tl.arange(0, BLOCK_P)
    has_rope = ropes < ROPE
    tile_mask = has_pair[:, None] & has_rank[None, :]
    q_rows = q_latent_ptr + row * stride_ql_row + head * stride_ql_head
    q_latent = tl.load(q_rows[:, None] + ranks[None, :], mask=tile_mask, other=0.0)
    q_rows = q_rope_ptr + row * stride_qr_row + head * stride_qr_head
    rope_mask = has_pair[:, None] & has_rope[None, :]
    q_rope = tl.load(q_rows[:, None] + ropes[None, :], mask=rope_mask, other=0.0)
    table = tables_ptr + seq * stride_table
    largest = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
    lane = tl.arange(0, BLOCK_N)
    next_block = load_blocks(table, begin + lane, end, BLOCK_SIZE)
    for start in range(begin, end, BLOCK_N):
        tokens = start + lane
        live = tokens < end
        # Block ids come one tile ahead: loads that wait for one another are not kept in flight.
        block = next_block
        next_block = load_blocks(table, tokens + BLOCK_N, end, BLOCK_SIZE)
        slot = slots_of(lane, tokens, BLOCK_N, BLOCK_SIZE)
        latent = load_rows(
            latent_ptr, block, slot, stride_l_block, stride_l_slot, live, ranks, has_rank,
            q_latent.dtype, SCALED,
        )  # fmt: skip
        key = load_rows(
            rope_ptr, block, slot, stride_r_block, stride_r_slot, live, ropes, has_rope,
            q_rope.dtype, False,
        )  # fmt: skip

        # ieee counts for fp32 alone; three tf32 products would spill registers at rank 512
        scores = tl.dot(q_latent, tl.trans(latent), input_precision="ieee")
        if SCALED:
            token_scale = load_scales(scale_ptr, block, slot, stride_s_block, stride_s_slot, live)
            scores *= token_scale[None, :]
        scores = tl.dot(q_rope, tl.trans(key), scores, input_precision="ieee") * scale
        seen = (tokens[None, :] < visible[:, None]) & live[None, :]
        scores = tl.where(seen, scores, -float("inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        base = tl.where(new_largest > -float("inf"), new_largest, 0.0)  # -inf - -inf is NaN
        shrink = tl.exp2(largest - base)
        weights = tl.exp2(scores - base[:, None])
        total = total * shrink + tl.sum(weights, 1)
        if SCALED:
            weights *= token_scale[None, :]
        acc = acc * shrink[:, None]
        acc = tl.dot(weights.to(latent.dtype), latent, acc, input_precision="ieee")
        largest = new_largest

    has_any = total > 0.0
    total = tl.where(has_any, total, 1.0)
    acc = acc / total[:, None]
    if SINGLE:
        targets = out_ptr + row * stride_out_row + head * stride_out_head
        result = acc.to(out_ptr.dtype.element_ty)
        tl.store(targets[:, None] + ranks[None, :], result, mask=tile_mask)
    else:
        at = (row * HEADS + head) * num_splits + split
        lse = tl.where(has_any, largest + tl.log2(total), -float("inf"))
        tl.store(lse_ptr + at, lse, mask=has_pair)
        filled = tile_mask & has_any[:, None]
        tl.store(partial_ptr + at[:, None] * RANK + ranks[None, :], acc, mask=filled)
