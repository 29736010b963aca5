"""RMSNorm as Triton kernels: one pass, rows in registers, several a program where short."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from dstune.kernels.launch import ceil_div, launch, next_power_of_2
from dstune.kernels.native.arguments import rows

_TILE = 2048  # elements of a program whose rows are short


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight; see the reference."""
    x, weight = rows(x), weight.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    num_rows, dim = x.shape
    block, num_rows_each, num_warps = _tile(dim)
    launch(
        _rms_norm, (ceil_div(num_rows, num_rows_each),),
        x, weight, out, x.stride(0), num_rows,
        EPS=eps, DIM=dim, BLOCK=block, ROWS=num_rows_each, num_warps=num_warps,
    )  # fmt: skip
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return (norm of x + residual, x + residual); see the reference."""
    x, residual, weight = rows(x), rows(residual), weight.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = torch.empty(x.shape, dtype=residual.dtype, device=x.device)
    num_rows, dim = x.shape
    block, num_rows_each, num_warps = _tile(dim)
    launch(
        _add_rms_norm, (ceil_div(num_rows, num_rows_each),),
        x, residual, weight, out, total, x.stride(0), residual.stride(0), num_rows,
        EPS=eps, DIM=dim, BLOCK=block, ROWS=num_rows_each, num_warps=num_warps,
    )  # fmt: skip
    return out, total


def _tile(dim: int) -> tuple[int, int, int]:
    """Return (padded row, rows of a program, warps): 16 elements a thread, two 16-byte loads."""
    block = next_power_of_2(dim)
    num_rows = max(1, _TILE // block)
    return block, num_rows, min(max(1, num_rows * block // 512), 16)


@triton.jit
def normalised(x, weight, EPS: tl.constexpr, DIM: tl.constexpr):
    """Return the norm of the rows x fp32 [R, BLOCK], zero past DIM, by weight fp32 [1, BLOCK]."""
    mean = tl.sum(x * x, axis=1, keep_dims=True) / DIM
    return x * tl.rsqrt(mean + EPS) * weight


@triton.jit
def _rms_norm(
    x, weight, out, stride_x, num_rows,
    EPS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < num_rows) & (column < DIM)
    values = tl.load(x + row * stride_x + column, mask=inside, other=0.0).to(tl.float32)
    scales = tl.load(weight + column, mask=column < DIM, other=0.0).to(tl.float32)
    result = normalised(values, scales, EPS, DIM)
    tl.store(out + row * DIM + column, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _add_rms_norm(
    x, residual, weight, out, total, stride_x, stride_residual, num_rows,
    EPS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < num_rows) & (column < DIM)
    values = tl.load(x + row * stride_x + column, mask=inside, other=0.0).to(tl.float32)
    old = tl.load(residual + row * stride_residual + column, mask=inside, other=0.0)
    # Rounded before it is normalised: both results describe the same number.
    new = (values + old.to(tl.float32)).to(total.dtype.element_ty)
    tl.store(total + row * DIM + column, new, mask=inside)
    scales = tl.load(weight + column, mask=column < DIM, other=0.0).to(tl.float32)
    result = normalised(new.to(tl.float32), scales, EPS, DIM).to(total.dtype.element_ty)
    tl.store(out + row * DIM + column, result.to(out.dtype.element_ty), mask=inside)
