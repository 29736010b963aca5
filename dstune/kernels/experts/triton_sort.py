"""Sorts (token, choice) pairs by expert into row tiles, on the device and in buffers of fixed size.

Nothing is read back, so a decode step can be captured in a CUDA graph, and nothing is counted
with atomics, so the order is the tokens' own and results repeat. A chunk of pairs is compared with
every expert at once: column sums count, running column sums give each pair its place.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from dstune.kernels.launch import ceil_div, launch, next_power_of_2

_COMPARED = 16384  # chunk * experts, values that a program holds in registers
_ALONE = 2048  # pairs that one program sorts; more are shared out
_MAX_SPANS = 128  # programs that share them; their counts are added up by one
_SPANS_AT_ONCE = 16
_TILES_AT_ONCE = 32


@dataclass(frozen=True)
class RowTiles:
    """Row tiles, each of pairs of one expert; pair p is choice p % k of token p // k."""

    pairs: Tensor  # int32 [num_tiles * block_m]; rows past a tile's own are undefined
    expert: Tensor  # int32 [num_tiles], -1 for a tile that is not used
    num_rows: Tensor  # int32 [num_tiles]
    num_tiles: int


@triton.jit
def _matches(ids, start, stop, CHUNK: tl.constexpr, EXPERTS: tl.constexpr):
    """Return int32 [CHUNK, EXPERTS]: 1 where pair start + i < stop goes to an expert."""
    at = start + tl.arange(0, CHUNK)
    chosen = tl.load(ids + at, mask=at < stop, other=-1).to(tl.int32)
    return (chosen[:, None] == tl.arange(0, EXPERTS)[None, :]).to(tl.int32)


@triton.jit
def _place(matches, next_row, pairs, start, CHUNK: tl.constexpr):
    """Write each pair to the row after those before it in its expert; next_row [EXPERTS]."""
    before = tl.cumsum(matches, axis=0) - matches
    row = tl.sum(matches * (before + next_row[None, :]), axis=1)
    is_sorted = tl.sum(matches, axis=1) > 0
    tl.store(pairs + row, start + tl.arange(0, CHUNK), mask=is_sorted)


@triton.jit
def _describe_tiles(
    counts, first_tile, tile_expert, tile_rows, num_tiles,
    BLOCK_M: tl.constexpr, EXPERTS: tl.constexpr, TILES_AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Write every tile's expert and how many of its rows are used."""
    experts = tl.arange(0, EXPERTS)
    first = first_tile[None, :]
    end = first + tl.cdiv(counts, BLOCK_M)[None, :]
    for start in range(0, num_tiles, TILES_AT_ONCE):
        tile = start + tl.arange(0, TILES_AT_ONCE)
        owns = ((tile[:, None] >= first) & (tile[:, None] < end)).to(tl.int32)
        left = tl.sum(owns * (counts[None, :] - (tile[:, None] - first) * BLOCK_M), axis=1)
        expert = tl.sum(owns * (experts[None, :] + 1), axis=1) - 1
        tl.store(tile_expert + tile, expert, mask=tile < num_tiles)
        tl.store(tile_rows + tile, tl.minimum(left, BLOCK_M), mask=tile < num_tiles)


@triton.jit(do_not_specialize=["num_pairs", "num_tiles"])
def sort_kernel(
    ids, pairs, tile_expert, tile_rows, num_pairs, num_tiles,
    BLOCK_M: tl.constexpr, EXPERTS: tl.constexpr, CHUNK: tl.constexpr,
    TILES_AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Do everything in one program: few pairs, one launch."""
    counts = tl.zeros((EXPERTS,), dtype=tl.int32)
    for start in range(0, num_pairs, CHUNK):
        counts += tl.sum(_matches(ids, start, num_pairs, CHUNK, EXPERTS), axis=0)
    tiles = tl.cdiv(counts, BLOCK_M)
    first_tile = tl.cumsum(tiles, axis=0) - tiles
    _describe_tiles(counts, first_tile, tile_expert, tile_rows, num_tiles,
                    BLOCK_M, EXPERTS, TILES_AT_ONCE)  # fmt: skip
    next_row = first_tile * BLOCK_M
    for start in range(0, num_pairs, CHUNK):
        matches = _matches(ids, start, num_pairs, CHUNK, EXPERTS)
        _place(matches, next_row, pairs, start, CHUNK)
        next_row += tl.sum(matches, axis=0)


@triton.jit(do_not_specialize=["num_pairs", "pairs_per_span"])
def count_kernel(
    ids, counts, num_pairs, pairs_per_span, EXPERTS: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """Count a span's pairs by expert into counts int32 [spans, EXPERTS]."""
    span = tl.program_id(0)
    stop = min((span + 1) * pairs_per_span, num_pairs)
    total = tl.zeros((EXPERTS,), dtype=tl.int32)
    for start in range(span * pairs_per_span, stop, CHUNK):
        total += tl.sum(_matches(ids, start, stop, CHUNK, EXPERTS), axis=0)
    tl.store(counts + span * EXPERTS + tl.arange(0, EXPERTS), total)


@triton.jit(do_not_specialize=["num_spans", "num_tiles"])
def plan_kernel(
    counts, before, first_row, tile_expert, tile_rows, num_spans, num_tiles,
    BLOCK_M: tl.constexpr, EXPERTS: tl.constexpr, SPANS_AT_ONCE: tl.constexpr,
    TILES_AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Add the spans' counts up: before [spans, EXPERTS] pairs of earlier spans, first_row."""
    experts = tl.arange(0, EXPERTS)
    total = tl.zeros((EXPERTS,), dtype=tl.int32)
    for start in range(0, num_spans, SPANS_AT_ONCE):
        span = start + tl.arange(0, SPANS_AT_ONCE)
        at = span[:, None] * EXPERTS + experts[None, :]
        is_span = (span < num_spans)[:, None]
        here = tl.load(counts + at, mask=is_span, other=0)
        tl.store(before + at, total[None, :] + tl.cumsum(here, axis=0) - here, mask=is_span)
        total += tl.sum(here, axis=0)
    tiles = tl.cdiv(total, BLOCK_M)
    first_tile = tl.cumsum(tiles, axis=0) - tiles
    tl.store(first_row + experts, first_tile * BLOCK_M)
    _describe_tiles(total, first_tile, tile_expert, tile_rows, num_tiles,
                    BLOCK_M, EXPERTS, TILES_AT_ONCE)  # fmt: skip


@triton.jit(do_not_specialize=["num_pairs", "pairs_per_span"])
def place_kernel(
    ids, before, first_row, pairs, num_pairs, pairs_per_span,
    EXPERTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write a span's pairs to their rows."""
    span = tl.program_id(0)
    stop = min((span + 1) * pairs_per_span, num_pairs)
    experts = tl.arange(0, EXPERTS)
    next_row = tl.load(first_row + experts) + tl.load(before + span * EXPERTS + experts)
    for start in range(span * pairs_per_span, stop, CHUNK):
        matches = _matches(ids, start, stop, CHUNK, EXPERTS)
        _place(matches, next_row, pairs, start, CHUNK)
        next_row += tl.sum(matches, axis=0)


def sort_pairs(ids: Tensor, num_experts: int, block_m: int) -> RowTiles:
    """Return the row tiles of ids int64 [T, k], contiguous.

    At most min(pairs, ceil(pairs / block_m) + experts) tiles are used, whatever the ids.
    """
    num_pairs = ids.numel()
    num_tiles = min(num_pairs, ceil_div(num_pairs, block_m) + num_experts)
    pairs = ids.new_empty(num_tiles * block_m, dtype=torch.int32)
    tile_expert, tile_rows = (ids.new_empty(num_tiles, dtype=torch.int32) for _ in range(2))
    experts = max(16, next_power_of_2(num_experts))
    chunk = min(_COMPARED // experts, max(16, next_power_of_2(num_pairs)))
    sizes = {"EXPERTS": experts, "CHUNK": chunk, "num_warps": 8, "num_stages": 1}
    tiles = {"BLOCK_M": block_m, "TILES_AT_ONCE": min(_TILES_AT_ONCE, _COMPARED // experts)}
    if num_pairs <= _ALONE:
        launch(sort_kernel, (1,), ids, pairs, tile_expert, tile_rows, num_pairs, num_tiles,
               **sizes, **tiles)  # fmt: skip
        return RowTiles(pairs, tile_expert, tile_rows, num_tiles)
    per_span = ceil_div(ceil_div(num_pairs, _MAX_SPANS), chunk) * chunk
    spans = ceil_div(num_pairs, per_span)
    counts, before = (ids.new_empty(spans, experts, dtype=torch.int32) for _ in range(2))
    first_row = ids.new_empty(experts, dtype=torch.int32)
    launch(count_kernel, (spans,), ids, counts, num_pairs, per_span, **sizes)
    launch(plan_kernel, (1,), counts, before, first_row, tile_expert, tile_rows, spans, num_tiles,
           EXPERTS=experts, SPANS_AT_ONCE=_SPANS_AT_ONCE, num_warps=8, num_stages=1,
           **tiles)  # fmt: skip
    launch(place_kernel, (spans,), ids, before, first_row, pairs, num_pairs, per_span, **sizes)
    return RowTiles(pairs, tile_expert, tile_rows, num_tiles)
