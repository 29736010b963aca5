"""Packed linear layers in plain torch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from dstune.errors import UsageError
from dstune.kernels.cache_io.reference import quantise_rows
from dstune.kernels.precision import FLOAT_PRECISIONS, PRECISIONS

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


class Int8WeightLinear:
    """y = (x q_W^T) * scale_W + b: int8 weights, one scale per output channel, x as it is."""

    precision = "int8_weight_only"

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight, self._scale = quantise_rows(weight.detach(), MIN_SCALE)
        self._bias = None if bias is None else bias.detach().float()
        self.num_bytes = self._weight.nbytes + self._scale.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [M, K] -> [M, N] in x's dtype; summed in fp32, scaled once at the end."""
        y = F.linear(x.float(), self._weight.float()) * self._scale
        return (y if self._bias is None else y + self._bias).to(x.dtype)


class Fp8Linear:
    """y = (q_x q_W^T) * scale_x * scale_W + b in e4m3, a scale per token and per output channel.

    A float type keeps its resolution beside an outlier, so no groups are needed.
    """

    precision = "fp8"

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight, self._scale = quantise_rows(weight.detach(), MIN_SCALE, torch.float8_e4m3fn)
        self._bias = None if bias is None else bias.detach().float()
        self.num_bytes = self._weight.nbytes + self._scale.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [M, K] -> [M, N] in x's dtype."""
        quantised, scale = quantise_rows(x, MIN_SCALE, torch.float8_e4m3fn)
        y = F.linear(quantised.float(), self._weight.float()) * scale[:, None] * self._scale
        return (y if self._bias is None else y + self._bias).to(x.dtype)


def int_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """Return x [M, K] @ weight [N, K]^T for int8 operands, exactly (fp64 holds every sum)."""
    return x.double() @ weight.double().T


def pack_linear(
    weight: Tensor, bias: Tensor | None, precision: str, activation_dtype: torch.dtype
) -> FloatLinear | Int8Linear | Int8WeightLinear | Fp8Linear:
    """Pack weight [N, K] and bias [N] for one of `PRECISIONS`."""
    match precision:
        case "int8":
            return Int8Linear(weight, bias)
        case "int8_weight_only":
            return Int8WeightLinear(weight, bias)
        case "fp8":
            return Fp8Linear(weight, bias)
    if precision not in FLOAT_PRECISIONS:
        raise UsageError(f"precision {precision!r}: the kernels know {', '.join(PRECISIONS)}")
    return FloatLinear(weight, bias, precision)
