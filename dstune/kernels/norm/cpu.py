"""RMSNorm in one native call."""

import torch
from torch import Tensor

from dstune.kernels.native import lib
from dstune.kernels.native.arguments import NULL, activation_code, like, rows


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise x [T, D] by weight [D]; see the reference."""
    x, weight = rows(x), like(weight, x)
    num_tokens, dim = x.shape
    out = x.new_empty(num_tokens, dim)
    lib().rms_norm(
        x.data_ptr(), x.stride()[0], NULL, 0, weight.data_ptr(), out.data_ptr(), NULL, num_tokens,
        dim, eps, activation_code(x), torch.get_num_threads(),
    )  # fmt: skip
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return (norm of x + residual, x + residual), all [T, D]; see the reference."""
    x, residual, weight = rows(x), rows(like(residual, x)), like(weight, x)
    num_tokens, dim = x.shape
    normed = x.new_empty(num_tokens, dim)
    total = x.new_empty(num_tokens, dim)
    lib().rms_norm(
        x.data_ptr(), x.stride()[0], residual.data_ptr(), residual.stride()[0], weight.data_ptr(),
        normed.data_ptr(), total.data_ptr(), num_tokens, dim, eps, activation_code(x),
        torch.get_num_threads(),
    )  # fmt: skip
    return normed, total
