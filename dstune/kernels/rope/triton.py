"""Rotary position embedding as a Triton kernel, and the tiles of pairs that cache writes share.

A head is held as two tiles, the first and the second members of its pairs, whichever way the
pairs lie in memory; loads and stores are contiguous in both layouts.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from torch import Tensor

from dstune.kernels.launch import ceil_div, launch, next_power_of_2
from dstune.kernels.rounding import product

_TILE = 2048  # elements of a program


def apply_rope(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> None:
    """Rotate x [T, H, D], which may be a strided view, in place; see the reference."""
    if x.stride(2) != 1:
        raise ValueError("a rotation in place needs a contiguous last dimension")
    num_tokens, num_heads, dim = x.shape
    check_tables(cos, sin, dim)
    block, num_heads_each, num_warps = tile(num_heads, dim)
    launch(
        _rope, (num_tokens, ceil_div(num_heads, num_heads_each)),
        x, positions, cos, sin, x.stride(0), x.stride(1), num_heads,
        HALF=dim // 2, BLOCK=block, HEADS=num_heads_each, INTERLEAVED=interleaved,
        num_warps=num_warps,
    )  # fmt: skip


def check_tables(cos: Tensor, sin: Tensor, dim: int) -> None:
    """Raise ValueError unless cos and sin are contiguous [max_len, dim / 2]."""
    for table in (cos, sin):
        if table.shape[1] * 2 != dim or not table.is_contiguous():
            raise ValueError(f"rotating {dim} elements needs contiguous tables [*, {dim // 2}]")


def tile(num_heads: int, dim: int) -> tuple[int, int, int]:
    """Return (padded half of a head, heads of a program, warps): 16 elements a thread."""
    block = next_power_of_2(dim // 2)
    num_heads_each = min(next_power_of_2(num_heads), max(1, _TILE // (2 * block)))
    return block, num_heads_each, min(max(1, num_heads_each * 2 * block // 512), 8)


@triton.jit
def rotated(a, b, c, s):
    """Return the pairs (a, b) turned by the angles with cosine c and sine s, all fp32."""
    return product(a, c) - product(b, s), product(b, c) + product(a, s)


@triton.jit
def load_angles(cos, sin, position, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """Return cosines and sines of a position, fp32 [1, BLOCK]."""
    column = tl.arange(0, BLOCK)[None, :]
    at = position.to(tl.int64) * HALF + column
    c = tl.load(cos + at, mask=column < HALF, other=0.0)
    s = tl.load(sin + at, mask=column < HALF, other=0.0)
    return c, s


@triton.jit
def load_pairs(
    heads, keep, HALF: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Return the pairs of the heads at pointers [HEADS, 1] as two fp32 tiles [HEADS, BLOCK]."""
    if INTERLEAVED:
        column = tl.arange(0, 2 * BLOCK)[None, :]
        both = tl.load(heads + column, mask=keep & (column < 2 * HALF), other=0.0).to(tl.float32)
        a, b = tl.split(tl.reshape(both, (HEADS, BLOCK, 2)))
    else:
        column = tl.arange(0, BLOCK)[None, :]
        inside = keep & (column < HALF)
        a = tl.load(heads + column, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(heads + HALF + column, mask=inside, other=0.0).to(tl.float32)
    return a, b


@triton.jit
def store_pairs(
    heads, keep, a, b, HALF: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Store what `load_pairs` returned, cast to the memory's type."""
    if INTERLEAVED:
        column = tl.arange(0, 2 * BLOCK)[None, :]
        both = tl.reshape(tl.join(a, b), (HEADS, 2 * BLOCK)).to(heads.dtype.element_ty)
        tl.store(heads + column, both, mask=keep & (column < 2 * HALF))
    else:
        column = tl.arange(0, BLOCK)[None, :]
        inside = keep & (column < HALF)
        tl.store(heads + column, a.to(heads.dtype.element_ty), mask=inside)
        tl.store(heads + HALF + column, b.to(heads.dtype.element_ty), mask=inside)


@triton.jit
def _rope(
    x, positions, cos, sin, stride_token, stride_head, num_heads,
    HALF: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    keep = head < num_heads
    heads = x + token * stride_token + head.to(tl.int64) * stride_head
    a, b = load_pairs(heads, keep, HALF, BLOCK, HEADS, INTERLEAVED)
    c, s = load_angles(cos, sin, tl.load(positions + token), HALF, BLOCK)
    a, b = rotated(a, b, c, s)
    store_pairs(heads, keep, a, b, HALF, BLOCK, HEADS, INTERLEAVED)
