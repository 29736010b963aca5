"""Packed linear layers in plain torch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from dstune.errors import UsageError
from dstune.kernels.cache_io.reference import quantise_rows

FLOAT_PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
GROUP = 64  # values of a row that share an activation scale; kScaleGroups in native/gemm.h
MIN_SCALE = 1e-12  # keeps a row of zeros from dividing by zero; the same in every backend


class FloatLinear:
    """y = x W^T + b with W kept in a float dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None, precision: str) -> None:
        self.out_features, self.in_features = weight.shape
        self.precision = precision
        self._weight = weight.detach().to(FLOAT_PRECISIONS[precision]).contiguous()
        self._bias = None if bias is None else bias.detach().float()
        self.num_bytes = self._weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [M, K] -> [M, N] in x's dtype; the bias is added in fp32."""
        y = F.linear(x.to(self._weight.dtype), self._weight)
        return (y if self._bias is None else y.float() + self._bias).to(x.dtype)


class Int8Linear:
    """y = sum over groups of (q_x q_W^T) * scale_x, * scale_W + b: W8A8, dynamic activations.

    The weight has one symmetric scale per output channel. The activation has one per token, so
    that a row's result does not depend on the rows beside it, and per group of 64 values, so that
    an outlier does not cost the whole row its resolution: with one scale per token SmolLM2's
    perplexity rises by 4%, with groups of 64 by less than 1%.
    """

    precision = "int8"

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight, self._scale = quantise_rows(weight.detach(), MIN_SCALE)
        self._bias = None if bias is None else bias.detach().float()
        self.num_bytes = self._weight.nbytes + self._scale.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [M, K] -> [M, N] in x's dtype."""
        y = torch.zeros(len(x), self.out_features, device=x.device)
        for first in range(0, self.in_features, GROUP):
            quantised, scale = quantise_rows(x[:, first : first + GROUP], MIN_SCALE)
            sums = int_matmul(quantised, self._weight[:, first : first + GROUP])
            y += sums.float() * scale[:, None]
        y = y * self._scale
        return (y if self._bias is None else y + self._bias).to(x.dtype)


def int_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """Return x [M, K] @ weight [N, K]^T for int8 operands, exactly (fp64 holds every sum)."""
    return x.double() @ weight.double().T


def pack_linear(
    weight: Tensor, bias: Tensor | None, precision: str, activation_dtype: torch.dtype
) -> FloatLinear | Int8Linear:
    """Pack weight [N, K] and bias [N] for a precision: fp32, bf16, fp16 or int8 (W8A8)."""
    if precision == "int8":
        return Int8Linear(weight, bias)
    if precision not in FLOAT_PRECISIONS:
        raise UsageError(f"precision {precision!r}: the kernels know fp32, bf16, fp16 and int8")
    return FloatLinear(weight, bias, precision)
