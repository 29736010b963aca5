"""The experts' products over row tiles: each program multiplies one expert's pairs by a column.

A program of a tile that is not used ends at once, so the grid does not depend on the ids. Weights
lie as in `linear.triton_multiply`, expert after expert, with offsets in 64 bits.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from dstune.kernels.linear.triton_multiply import add_int8_group, multiply, tile_of


@triton.jit(do_not_specialize=["num_tiles", "num_x_rows"])
def grouped_kernel(
    x,  # [num_x_rows, depth]; row p // PAIRS_PER_ROW belongs to pair p
    x_scale,  # fp32 [depth / 64, num_x_rows] for int8, [num_x_rows] for fp8, unused otherwise
    weight,  # [E, width, stride_weight]; [E, 2 * width, stride_weight] = [gate | up] where GATED
    weight_scale,  # fp32 [E, width or 2 * width], unused for float weights
    out,  # [num_pairs, width]
    ids,  # int64 [num_pairs]; read where not SORTED, then pair p is tile p
    pairs,  # the next three as in RowTiles, read where SORTED
    tile_expert,
    tile_rows,
    num_tiles,
    num_x_rows,
    width,
    depth,
    stride_x,
    stride_weight,
    PRECISION: tl.constexpr,
    GATED: tl.constexpr,
    SORTED: tl.constexpr,
    PAIRS_PER_ROW: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,  # output columns
    BLOCK_K: tl.constexpr,
    UNROLL: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    tile, n = tile_of(tl.program_id(0), num_tiles, tl.cdiv(width, BLOCK_N), GROUP_M)
    slots = tl.arange(0, BLOCK_M)
    if SORTED:
        expert = tl.load(tile_expert + tile)
        if expert < 0:
            return
        is_row = slots < tl.load(tile_rows + tile)
        pair = tl.load(pairs + tile * BLOCK_M + slots, mask=is_row, other=0)
    else:
        expert = tl.load(ids + tile).to(tl.int32)
        is_row = slots < 1
        pair = tile + slots
    x_row = pair // PAIRS_PER_ROW
    x_at = x_row.to(tl.int64) * stride_x
    columns = n * BLOCK_N + tl.arange(0, BLOCK_N)
    is_column = columns < width
    weight_rows = width * 2 if GATED else width
    weight += expert.to(tl.int64) * weight_rows * stride_weight
    weight_at = columns * stride_weight
    up = weight + width * stride_weight
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    up_sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    if PRECISION == "int8":
        next_scale = tl.load(x_scale + x_row, mask=is_row, other=0.0)
    for k in range(0, depth, UNROLL * BLOCK_K):
        for step in tl.static_range(UNROLL):
            at = k + step * BLOCK_K + tl.arange(0, BLOCK_K)
            if PRECISION == "int8":  # one group ahead, as in linear_kernel
                scale = next_scale
                group = min(k // BLOCK_K + step + 1, depth // BLOCK_K - 1)
                next_scale = tl.load(x_scale + group * num_x_rows + x_row, mask=is_row, other=0.0)
            x_tile = tl.load(
                x + x_at[:, None] + at[None, :],
                mask=is_row[:, None] & (at[None, :] < depth),
                other=0.0,
            )
            is_weight = is_column[None, :] & (at[:, None] < depth)
            tile_at = weight_at[None, :] + at[:, None]
            weight_tile = tl.load(weight + tile_at, mask=is_weight, other=0.0)
            if PRECISION == "int8":
                sums = add_int8_group(x_tile, weight_tile, scale, sums)
            else:
                sums = multiply(x_tile, weight_tile, sums, PRECISION)
            if GATED:
                up_tile = tl.load(up + tile_at, mask=is_weight, other=0.0)
                if PRECISION == "int8":
                    up_sums = add_int8_group(x_tile, up_tile, scale, up_sums)
                else:
                    up_sums = multiply(x_tile, up_tile, up_sums, PRECISION)
    if PRECISION != "float":
        weight_scale += expert.to(tl.int64) * weight_rows
        column_scale = tl.load(weight_scale + columns, mask=is_column, other=0.0)
        sums *= column_scale[None, :]
        if PRECISION == "fp8":
            row_scale = tl.load(x_scale + x_row, mask=is_row, other=0.0)
            sums *= row_scale[:, None]
        if GATED:
            up_scale = tl.load(weight_scale + width + columns, mask=is_column, other=0.0)
            up_sums *= up_scale[None, :]
            if PRECISION == "fp8":
                up_sums *= row_scale[:, None]
    if GATED:
        sums = sums / (1.0 + tl.exp(-sums)) * up_sums
    tl.store(
        out + pair.to(tl.int64)[:, None] * width + columns[None, :],
        sums.to(out.dtype.element_ty),
        mask=is_row[:, None] & is_column[None, :],
    )


@triton.jit
def combine_kernel(
    y,  # [T * TOP_K, hidden]
    weights,  # fp32 [T, TOP_K]
    out,  # [T, hidden]
    hidden,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add each token's choices, weighted, in their order."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < hidden
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for choice in tl.static_range(TOP_K):
        pair = token * TOP_K + choice
        row = tl.load(y + pair * hidden + columns, mask=is_column, other=0.0).to(tl.float32)
        total += row * tl.load(weights + pair)
    tl.store(out + token * hidden + columns, total.to(out.dtype.element_ty), mask=is_column)
