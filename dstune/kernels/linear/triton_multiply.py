"""The matrix products of quantised linear layers, and what they share with the routed experts.

A weight lies as [N, K], K contiguous and padded with zeros to whole groups of 64: rows start at
16 bytes, so loads along K are wide, and it is the only order in which the tensor cores take 8-bit
operands. PRECISION is a precision's name, or "float" where weights have the activations' dtype.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl


@triton.jit
def multiply(x, weight, sums, PRECISION: tl.constexpr):
    """Return sums + x [M, K] @ weight [K, N]; an int8 weight beside float x becomes x's dtype."""
    if PRECISION == "fp8":
        # Hopper adds fp8 products in about 14 bits: move sums to fp32 registers every 128 values
        DEPTH: tl.constexpr = weight.shape[0]
        EVERY: tl.constexpr = DEPTH if DEPTH < 128 else 128
        sums = tl.dot(x, weight, sums, max_num_imprecise_acc=EVERY)
    else:
        sums = tl.dot(x, weight.to(x.dtype), sums, input_precision="ieee")
    return sums


@triton.jit
def add_int8_group(x, weight, scale, sums):
    """Return sums + (x @ weight) * scale [M, 1] for one group of 64 values, exact in int32."""
    return sums + tl.dot(x, weight, out_dtype=tl.int32).to(tl.float32) * scale[:, None]


@triton.jit
def tile_of(pid, num_row_tiles, num_column_tiles, GROUP_M: tl.constexpr):
    """Return (row tile, column tile); GROUP_M row tiles share a column's weights in the L2."""
    per_group = GROUP_M * num_column_tiles
    first = pid // per_group * GROUP_M
    height = min(num_row_tiles - first, GROUP_M)
    return first + pid % per_group % height, pid % per_group // height


@triton.jit(do_not_specialize=["num_rows"])
def linear_kernel(
    x,  # [M, K], quantised but for int8_weight_only
    x_scale,  # fp32 [K / 64, M] for int8, [M] for fp8, unused otherwise
    weight,  # [N, stride_weight]
    weight_scale,  # fp32 [N]
    bias,  # fp32 [N], unused without HAS_BIAS
    out,  # [M, N]; fp32 [SPLITS, M, N] of unscaled sums where SPLITS > 1
    num_rows,
    num_columns,
    depth,
    stride_x,
    stride_weight,
    depth_per_split,  # a multiple of UNROLL * BLOCK_K
    PRECISION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    UNROLL: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    split = tl.program_id(1)
    m, n = tile_of(
        tl.program_id(0), tl.cdiv(num_rows, BLOCK_M), tl.cdiv(num_columns, BLOCK_N), GROUP_M
    )
    rows = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    is_row = m * BLOCK_M + rows < num_rows
    is_column = n * BLOCK_N + columns < num_columns
    # The tile's corner in 64 bits, offsets within a tile in 32
    x += (m * BLOCK_M).to(tl.int64) * stride_x
    weight += (n * BLOCK_N).to(tl.int64) * stride_weight
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    first = split * depth_per_split
    if PRECISION == "int8" or PRECISION == "fp8":
        x_scale += m * BLOCK_M
    if PRECISION == "int8":
        next_scale = tl.load(x_scale + first // BLOCK_K * num_rows + rows, mask=is_row, other=0.0)
    for k in range(first, min(first + depth_per_split, depth), UNROLL * BLOCK_K):
        for step in tl.static_range(UNROLL):
            at = k + step * BLOCK_K + tl.arange(0, BLOCK_K)
            if PRECISION == "int8":
                # The next group's scale is on its way while this one is multiplied. Past the end
                # the operands are zero, so that any scale will do.
                scale = next_scale
                group = min(k // BLOCK_K + step + 1, depth // BLOCK_K - 1)
                next_scale = tl.load(x_scale + group * num_rows + rows, mask=is_row, other=0.0)
            x_tile = tl.load(
                x + rows[:, None] * stride_x + at[None, :],
                mask=is_row[:, None] & (at[None, :] < depth),
                other=0.0,
            )
            weight_tile = tl.load(
                weight + columns[None, :] * stride_weight + at[:, None],
                mask=is_column[None, :] & (at[:, None] < depth),
                other=0.0,
            )
            if PRECISION == "int8":
                sums = add_int8_group(x_tile, weight_tile, scale, sums)
            else:
                sums = multiply(x_tile, weight_tile, sums, PRECISION)
    out += (split.to(tl.int64) * num_rows + m * BLOCK_M) * num_columns + n * BLOCK_N
    if SPLITS == 1:
        if PRECISION == "fp8":
            sums *= tl.load(x_scale + rows, mask=is_row, other=0.0)[:, None]
        at_columns = n * BLOCK_N + columns
        sums *= tl.load(weight_scale + at_columns, mask=is_column, other=0.0)[None, :]
        if HAS_BIAS:
            sums += tl.load(bias + at_columns, mask=is_column, other=0.0)[None, :]
    tl.store(
        out + rows[:, None] * num_columns + columns[None, :],
        sums.to(out.dtype.element_ty),
        mask=is_row[:, None] & is_column[None, :],
    )


@triton.jit(do_not_specialize=["num_rows"])
def add_splits_kernel(
    sums,  # fp32 [SPLITS, M, N]
    x_scale,  # fp32 [M] for fp8, unused otherwise
    weight_scale,
    bias,
    out,  # [M, N]
    num_rows,
    num_columns,
    PRECISION: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Add the parts of split depth in their order, so that results repeat, and finish them."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_column = columns < num_columns
    total = tl.zeros((BLOCK_N,), dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        part = sums + (split * num_rows + row) * num_columns
        total += tl.load(part + columns, mask=is_column, other=0.0)
    if PRECISION == "fp8":
        total *= tl.load(x_scale + row)
    total *= tl.load(weight_scale + columns, mask=is_column, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias + columns, mask=is_column, other=0.0)
    tl.store(out + row * num_columns + columns, total.to(out.dtype.element_ty), mask=is_column)
