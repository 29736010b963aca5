"""Linear layers on the native matrix-multiply kernel (`native/gemm.h`)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from dstune.errors import UsageError
from dstune.kernels.cache_io.reference import quantise_rows
from dstune.kernels.linear.reference import MIN_SCALE
from dstune.kernels.native import lib
from dstune.kernels.native.arguments import activation_code, pointer, rows

PANEL = 32  # columns side by side in memory; kPanel in gemm.h
PRECISIONS = {
    "fp32": (0, torch.float32),
    "bf16": (1, torch.bfloat16),
    "int8": (2, torch.int8),
}  # code in gemm.h, stored dtype


class PackedWeight:
    """A weight [N, K] in the kernel's layout: [ceil(N/32)][groups of 4 bytes along K][32]."""

    def __init__(self, weight: Tensor, precision: str) -> None:
        self.code, dtype = PRECISIONS[precision]
        weight = weight.detach()
        self.column_scale: Tensor | None = None
        if precision == "int8":
            weight, scale = quantise_rows(weight, MIN_SCALE)
            self.column_scale = pad_columns(scale)
            weight = weight.bitwise_xor(-128)  # the bits of value + 128, as the kernel wants it
        num_columns, depth = weight.shape
        group = 4 // dtype.itemsize
        padded = F.pad(weight.to(dtype), (0, -depth % group, 0, -num_columns % PANEL))
        panels = padded.view(padded.shape[0] // PANEL, PANEL, -1, group)
        self.data = panels.transpose(1, 2).contiguous()
        self.num_bytes = self.data.nbytes
        if self.column_scale is not None:
            self.num_bytes += self.column_scale.nbytes


class CpuLinear:
    """A linear layer over a packed weight; results do not depend on M, to the last bit."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, precision: str, activation_dtype: torch.dtype
    ) -> None:
        self.out_features, self.in_features = weight.shape
        self.precision = precision
        self._packed = packed = PackedWeight(weight, precision)
        self._bias = None if bias is None else pad_columns(bias.detach().float())
        self.num_bytes = packed.num_bytes
        self._pointers = (
            packed.data.data_ptr(),
            pointer(packed.column_scale),
            pointer(self._bias),
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [M, K] -> [M, N] in x's dtype."""
        x = rows(x)
        num_rows, depth = x.shape
        if depth != self.in_features:
            raise ValueError(f"x has {depth} features, the weight {self.in_features}")
        out = x.new_empty(num_rows, self.out_features)
        lib().linear(
            x.data_ptr(), x.stride()[0], *self._pointers, out.data_ptr(), num_rows,
            self.out_features, depth, self._packed.code, activation_code(x),
            torch.get_num_threads(),
        )  # fmt: skip
        return out


def pad_columns(values: Tensor) -> Tensor:
    """Pad one value per column [N] with zeros to whole panels."""
    return F.pad(values, (0, -len(values) % PANEL))


def pack_linear(
    weight: Tensor, bias: Tensor | None, precision: str, activation_dtype: torch.dtype
) -> CpuLinear:
    """Pack weight [N, K] and bias [N] for fp32, bf16 or int8 (W8A8)."""
    check_precision(precision)
    return CpuLinear(weight, bias, precision, activation_dtype)


def check_precision(precision: str) -> None:
    """Raise UsageError for a precision that the native kernels do not have."""
    if precision not in PRECISIONS:
        raise UsageError(
            f"the cpu backend has no {precision} weights (fp16 is slow on a CPU): "
            "use fp32, bf16 or int8, or backend: reference"
        )
