"""RMSNorm in plain torch."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight, computed in fp32 and rounded once.

    x [T, D], weight [D] -> [T, D]. Source: Zhang and Sennrich 2019.
    """
    x32 = x.float()
    scale = torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    return (x32 * scale * weight.float()).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return (norm of x + residual, x + residual); all [T, D].

    The sum is rounded to the residual's dtype before it is normalised, so that the two results
    describe the same number.
    """
    total = (x.float() + residual.float()).to(residual.dtype)
    return rms_norm(total, weight, eps).to(x.dtype), total
