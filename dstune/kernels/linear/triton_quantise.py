"""Quantises activations before a matrix product: int8 by groups of 64 values, e4m3 by rows.

The arithmetic is `cache_io.reference.quantise_rows` to the last bit.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from dstune.kernels.launch import ceil_div, launch
from dstune.kernels.linear.reference import GROUP, MIN_SCALE
from dstune.kernels.rounding import quantise, row_scale

_BLOCK = 1024  # values of a row that a program has in registers


@triton.jit(do_not_specialize=["num_rows"])
def quantise_groups_kernel(
    x,  # [M, depth]
    quantised,  # int8 [M, padded_depth]
    scales,  # fp32 [padded_depth / GROUP, M]
    num_rows,
    depth,
    padded_depth,
    stride_x,
    MIN_SCALE: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    groups = tl.program_id(1) * NUM_GROUPS + tl.arange(0, NUM_GROUPS)
    at = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    values = tl.load(x + row * stride_x + at, mask=at < depth, other=0.0).to(tl.float32)
    scale = row_scale(tl.max(tl.abs(values), axis=1), MIN_SCALE, tl.int8)
    values = quantise(values, scale[:, None], tl.int8)
    tl.store(quantised + row * padded_depth + at, values, mask=at < padded_depth)
    tl.store(scales + groups * num_rows + row, scale, mask=groups * GROUP < padded_depth)


@triton.jit
def quantise_rows_kernel(
    x,  # [M, depth]
    quantised,  # e4m3 [M, padded_depth]
    scales,  # fp32 [M]
    depth,
    padded_depth,
    stride_x,
    MIN_SCALE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    x += row * stride_x
    largest = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, depth, BLOCK):
        at = first + tl.arange(0, BLOCK)
        values = tl.load(x + at, mask=at < depth, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(values))
    scale = row_scale(tl.max(largest, axis=0), MIN_SCALE, quantised.dtype.element_ty)
    tl.store(scales + row, scale)
    for first in range(0, padded_depth, BLOCK):
        at = first + tl.arange(0, BLOCK)
        values = tl.load(x + at, mask=at < depth, other=0.0).to(tl.float32)
        values = quantise(values, scale, quantised.dtype.element_ty)
        tl.store(quantised + row * padded_depth + at, values, mask=at < padded_depth)


def quantise_groups(x: Tensor, padded_depth: int) -> tuple[Tensor, Tensor]:
    """Return x [M, K] as int8 [M, padded_depth] and scales fp32 [padded_depth / 64, M].

    Padding is zero; the last dimension of x is contiguous.
    """
    num_rows, depth = x.shape
    quantised = x.new_empty(num_rows, padded_depth, dtype=torch.int8)
    scales = x.new_empty(padded_depth // GROUP, num_rows, dtype=torch.float32)
    launch(
        quantise_groups_kernel, (num_rows, ceil_div(padded_depth, _BLOCK)),
        x, quantised, scales, num_rows, depth, padded_depth, x.stride(0),
        MIN_SCALE=MIN_SCALE, NUM_GROUPS=_BLOCK // GROUP, GROUP=GROUP, num_warps=4, num_stages=1,
    )  # fmt: skip
    return quantised, scales


def quantise_rows(x: Tensor, padded_depth: int) -> tuple[Tensor, Tensor]:
    """Return x [M, K] as e4m3 [M, padded_depth] and scales fp32 [M]; as `quantise_groups`."""
    num_rows, depth = x.shape
    quantised = x.new_empty(num_rows, padded_depth, dtype=torch.float8_e4m3fn)
    scales = x.new_empty(num_rows, dtype=torch.float32)
    launch(
        quantise_rows_kernel, (num_rows,),
        x, quantised, scales, depth, padded_depth, x.stride(0),
        MIN_SCALE=MIN_SCALE, BLOCK=_BLOCK, num_warps=4, num_stages=1,
    )  # fmt: skip
    return quantised, scales
