"""Exact fp32 arithmetic inside Triton kernels: what makes their results the reference's own.

The interpreter stores fp32 as e4m3 by truncation, so numbers are rounded to e4m3's grid before:
what is proved there is what a GPU computes.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl

from dstune.kernels.cache_io.reference import FP8_MAX as _FP8_MAX
from dstune.kernels.cache_io.reference import LARGEST

FP8_MAX = tl.constexpr(_FP8_MAX)
INT8_MAX = tl.constexpr(LARGEST[torch.int8])
# Adding and subtracting 1.5 * 2^(23 - k) rounds a small fp32 to a multiple of 2^-k, half to even.
TO_INTEGER = tl.constexpr(1.5 * 2.0**23)
TO_FP8_SUBNORMAL = tl.constexpr(1.5 * 2.0**14)


@triton.jit
def product(a, b):
    """Return a * b rounded to fp32.

    Written so that the compiler cannot merge it with a following addition: the reference rounds
    every product, and results are to be equal.
    """
    return tl.fma(a, b, 0.0)


@triton.jit
def row_scale(largest, MIN_SCALE: tl.constexpr, KIND: tl.constexpr):
    """Return the scale of rows whose largest magnitude is given, for elements of type KIND.

    Divided as IEEE says: the plain operator may be off by two units in the last place.
    """
    limit: tl.constexpr = INT8_MAX if KIND.is_int8() else FP8_MAX
    return tl.maximum(tl.div_rn(largest, limit), MIN_SCALE)


@triton.jit
def quantise(x, scale, KIND: tl.constexpr):
    """Return fp32 x by the reciprocal of scale as numbers of type KIND, int8 or e4m3."""
    scaled = product(x, tl.div_rn(1.0, scale))
    if KIND.is_int8():
        whole = (scaled + TO_INTEGER) - TO_INTEGER
        return tl.minimum(tl.maximum(whole, -INT8_MAX), INT8_MAX).to(tl.int8)
    scaled = tl.minimum(tl.maximum(scaled, -FP8_MAX), FP8_MAX)
    # A normal e4m3 number keeps 3 bits of its fraction; below 2^-6 the step is 2^-9.
    bits = scaled.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
    subnormal = (scaled + TO_FP8_SUBNORMAL) - TO_FP8_SUBNORMAL
    return tl.where(tl.abs(scaled) < 0.015625, subnormal, normal).to(KIND)
