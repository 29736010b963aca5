"""SwiGLU's gate as a Triton kernel."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from dstune.kernels.launch import ceil_div, launch, next_power_of_2
from dstune.kernels.native.arguments import rows


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up for gate_up [T, 2F] = [gate | up] -> [T, F]; see the reference."""
    gate_up = rows(gate_up)
    num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(num_rows, width, dtype=gate_up.dtype, device=gate_up.device)
    block = min(next_power_of_2(width), 1024)
    num_rows_each = max(1, 1024 // block)
    launch(
        _silu_and_mul, (ceil_div(num_rows, num_rows_each), ceil_div(width, block)),
        gate_up, out, gate_up.stride(0), num_rows,
        WIDTH=width, BLOCK=block, ROWS=num_rows_each, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _silu_and_mul(
    gate_up, out, stride, num_rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (row < num_rows) & (column < WIDTH)
    at = gate_up + row * stride + column
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + WIDTH, mask=inside, other=0.0).to(tl.float32)
    power = tl.exp(-tl.abs(gate))  # of a negative number: nothing overflows
    result = gate * (tl.where(gate < 0, power, 1.0) / (1.0 + power)) * up
    tl.store(out + row * WIDTH + column, result.to(out.dtype.element_ty), mask=inside)
