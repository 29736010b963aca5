"""What proves and what times RMSNorm."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from dstune.kernels.precision import FLOAT_PRECISIONS
from dstune.kernels.select import Kernels
from dstune.kernels.workbench.case import Case, Cost, Inputs

NAMES = {dtype: name for name, dtype in FLOAT_PRECISIONS.items()}
FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
# The order in which squares are added and the GPU's rsqrt make a few units of 2^-24; rounding to
# 16 bits may then fall to the neighbour. Zeros and what is next to them are left to ATOL.
RTOL = {FP32: 4e-6, FP16: 2.0**-10, BF16: 2.0**-7}
ATOL = 1e-6
EPS = 1e-6


def checks() -> Iterator[Case]:
    """Odd and even sizes, one token and none, strided views, mixed types, rows of zeros."""
    for num_tokens, dim in ((3, 17), (1, 40), (5, 576), (0, 64), (33, 64), (1, 2048), (2, 1000)):
        yield _rms_norm(num_tokens, dim, FP32)
        yield _add_rms_norm(num_tokens, dim, FP16, FP16)
    yield _rms_norm(4, 576, FP16, pad=24)
    yield _rms_norm(4, 50, FP32, pad=3)
    yield _add_rms_norm(4, 50, FP32, FP32, pad=3)
    yield _add_rms_norm(3, 40, FP16, FP32)
    yield _add_rms_norm(3, 40, FP32, FP16)
    yield _rms_norm(5, 576, BF16)
    yield _add_rms_norm(5, 576, BF16, BF16)


def benches() -> Iterator[Case]:
    """The hidden sizes of DeepSeek-V2-Lite and V3, a decode step and a prefill."""
    for num_tokens in (32, 4096):
        for dim in (2048, 7168):
            yield _rms_norm(num_tokens, dim, BF16)
            yield _add_rms_norm(num_tokens, dim, BF16, BF16)


def _rows(num_tokens: int, dim: int, dtype: torch.dtype, pad: int, device: torch.device) -> Tensor:
    """Rows whose neighbours in memory are not theirs.

    Of several the first is zero, and the second so small that eps decides.
    """
    x = torch.randn(num_tokens, dim + pad, device=device)
    if num_tokens > 1:
        x[0] = 0
        x[1] *= 1e-3
    return x.to(dtype)[:, pad:]


def _rms_norm(num_tokens: int, dim: int, dtype: torch.dtype, pad: int = 0) -> Case:
    def make(device: torch.device) -> Inputs:
        weight = (torch.rand(dim, device=device) + 0.5).to(dtype)
        return {"x": _rows(num_tokens, dim, dtype, pad, device), "weight": weight}

    def call(kernels: Kernels, inputs: Inputs) -> tuple[Tensor, ...]:
        return (kernels.rms_norm(inputs["x"], inputs["weight"], EPS),)

    def torchs(inputs: Inputs) -> Tensor:
        return rms_norm(inputs["x"], (dim,), inputs["weight"], EPS)

    values = num_tokens * dim
    cost = Cost((2 * values + dim) * dtype.itemsize, 4 * values)
    name = f"{NAMES[dtype]}-{num_tokens}x{dim}" + (f"-strided{pad}" if pad else "")
    return Case("rms_norm", name, dtype, make, call, ATOL, RTOL[dtype], False, cost, torchs)


def _add_rms_norm(
    num_tokens: int, dim: int, dtype: torch.dtype, residual_dtype: torch.dtype, pad: int = 0
) -> Case:
    def make(device: torch.device) -> Inputs:
        return {
            "x": _rows(num_tokens, dim, dtype, pad, device),
            "residual": _rows(num_tokens, dim, residual_dtype, 2 * pad, device),
            "weight": (torch.rand(dim, device=device) + 0.5).to(dtype),
        }

    def call(kernels: Kernels, inputs: Inputs) -> tuple[Tensor, ...]:
        return kernels.add_rms_norm(inputs["x"], inputs["residual"], inputs["weight"], EPS)

    def torchs(inputs: Inputs) -> tuple[Tensor, Tensor]:
        total = inputs["x"] + inputs["residual"]
        return rms_norm(total, (dim,), inputs["weight"], EPS), total

    values = num_tokens * dim
    moved = 2 * values * (dtype.itemsize + residual_dtype.itemsize) + dim * dtype.itemsize
    name = f"{NAMES[dtype]}-residual_{NAMES[residual_dtype]}-{num_tokens}x{dim}"
    name += f"-strided{pad}" if pad else ""
    rtol = max(RTOL[dtype], RTOL[residual_dtype])
    cost = Cost(moved, 5 * values)
    return Case("add_rms_norm", name, dtype, make, call, ATOL, rtol, False, cost, torchs)
