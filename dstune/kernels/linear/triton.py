"""Linear layers on a GPU: cuBLAS for float weights, our own kernels for int8 and fp8.

Few rows, as in decode, are bound by reading the weight: narrow tiles then give every
multiprocessor a share, and a deep weight with few columns is split along its depth.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dstune.errors import UsageError
from dstune.kernels.cache_io import reference as cache_io
from dstune.kernels.device import Gpu, gpu_of
from dstune.kernels.launch import ceil_div, launch, next_power_of_2
from dstune.kernels.linear.reference import GROUP, MIN_SCALE, FloatLinear
from dstune.kernels.linear.triton_multiply import add_splits_kernel, linear_kernel
from dstune.kernels.linear.triton_quantise import quantise_groups, quantise_rows
from dstune.kernels.native.arguments import rows
from dstune.kernels.precision import FLOAT_PRECISIONS, FP8_CAPABILITY, PRECISIONS

STORED = {
    "int8": torch.int8,
    "int8_weight_only": torch.int8,
    "fp8": torch.float8_e4m3fn,
}
"""Precision -> dtype of the weight in memory."""

MIN_SPLIT_DEPTH = 2048  # a shorter part costs more in a second launch than it saves
_REDUCE_BLOCK = 512


@dataclass(frozen=True)
class LinearTile:
    """How one product is cut into programs."""

    block_m: int
    block_n: int
    block_k: int
    unroll: int  # blocks of depth in one iteration
    splits: int  # of the depth
    num_warps: int
    num_stages: int


def choose_tile(
    num_rows: int, num_columns: int, depth: int, precision: str, x_bytes: int, gpu: Gpu
) -> LinearTile:
    """Return the tile for x [M, K] of x_bytes per value (1 once quantised) and weight [N, K]."""
    is_int8 = precision == "int8"
    unroll = 1
    if num_rows <= 64:
        block_m = max(16, next_power_of_2(num_rows))
        block_n = 64 if ceil_div(num_columns, 64) >= gpu.num_multiprocessors else 32
        block_k, num_warps, num_stages = 256 if block_m <= 32 else 128, 4, 4
    elif ceil_div(num_rows, 128) * ceil_div(num_columns, 128) >= gpu.num_multiprocessors:
        block_m, block_n, block_k, num_warps, num_stages = 128, 128, 128 // x_bytes, 8, 3
    else:
        block_m, block_n, block_k, num_warps, num_stages = 64, 64, 128 // x_bytes, 4, 4
    if is_int8:  # a group has a scale of its own
        unroll = min(block_k, depth) // GROUP if num_rows <= 64 else 1
        block_k = GROUP
    elif x_bytes == 4:  # fp32 products have no tensor core, only registers
        block_m, block_n, block_k, num_warps = min(block_m, 64), min(block_n, 64), 32, 4
    # On Hopper a converted weight tile lies in shared memory once more
    per_stage = (block_m * x_bytes + block_n) * block_k * unroll
    room = gpu.shared_memory_bytes - block_n * block_k * x_bytes
    num_stages = min(num_stages, room // per_stage)
    programs = ceil_div(num_rows, block_m) * ceil_div(num_columns, block_n)
    splits = min(gpu.num_multiprocessors // programs, depth // MIN_SPLIT_DEPTH)
    splits = max(1, splits) if num_rows <= 64 else 1
    return LinearTile(block_m, block_n, block_k, unroll, splits, num_warps, num_stages)


class QuantisedWeight:
    """One weight [N, K], or a stack of them, as [..., N, padded K] with a scale per channel."""

    def __init__(self, weights: Sequence[Tensor], precision: str) -> None:
        num_columns, depth = weights[0].shape
        self.padded_depth = ceil_div(depth, GROUP) * GROUP
        shape = (len(weights), num_columns)
        self.data = weights[0].new_empty(*shape, self.padded_depth, dtype=STORED[precision])
        self.scale = weights[0].new_empty(shape, dtype=torch.float32)
        for index, weight in enumerate(weights):
            weight = weight.detach()
            if depth < self.padded_depth:
                weight = F.pad(weight, (0, self.padded_depth - depth))
            data, scale = cache_io.quantise_rows(weight, MIN_SCALE, STORED[precision])
            self.data[index].copy_(data)
            self.scale[index].copy_(scale)
        self.num_bytes = self.data.nbytes + self.scale.nbytes


class QuantisedLinear:
    """A linear layer over an int8 or fp8 weight; numerics as in the reference's classes."""

    def __init__(self, weight: Tensor, bias: Tensor | None, precision: str) -> None:
        self.out_features, self.in_features = weight.shape
        self.precision = precision
        self._weight = QuantisedWeight([weight], precision)
        self._bias = None if bias is None else bias.detach().float().contiguous()
        self.num_bytes = self._weight.num_bytes

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [M, K] -> [M, N] in x's dtype."""
        x = rows(x)
        if x.shape[1] != self.in_features:
            raise ValueError(f"x has {x.shape[1]} features, the weight {self.in_features}")
        out = x.new_empty(len(x), self.out_features)
        if not len(x):
            return out
        packed = self._weight
        operand, scale = quantise_for(x, self.precision, packed.padded_depth)
        depth = operand.shape[1]
        tile = choose_tile(len(x), self.out_features, depth, self.precision,
                           operand.element_size(), gpu_of(x.device))  # fmt: skip
        step = tile.block_k * tile.unroll
        per_split = ceil_div(ceil_div(depth, tile.splits), step) * step
        splits = ceil_div(depth, per_split)
        sums = out
        if splits > 1:
            sums = x.new_empty(splits, *out.shape, dtype=torch.float32)
        bias = packed.scale if self._bias is None else self._bias
        constants = {
            "PRECISION": self.precision, "HAS_BIAS": self._bias is not None, "SPLITS": splits,
        }  # fmt: skip
        tiles = ceil_div(len(x), tile.block_m) * ceil_div(self.out_features, tile.block_n)
        launch(
            linear_kernel, (tiles, splits),
            operand, scale, packed.data, packed.scale, bias, sums, len(x), self.out_features,
            depth, operand.stride(0), packed.padded_depth, per_split,
            BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, BLOCK_K=tile.block_k, UNROLL=tile.unroll,
            GROUP_M=8, num_warps=tile.num_warps, num_stages=tile.num_stages, **constants,
        )  # fmt: skip
        if splits > 1:
            launch(
                add_splits_kernel, (len(x), ceil_div(self.out_features, _REDUCE_BLOCK)),
                sums, scale, packed.scale, bias, out, len(x), self.out_features,
                BLOCK_N=_REDUCE_BLOCK, num_warps=4, num_stages=1, **constants,
            )  # fmt: skip
        return out


def quantise_for(x: Tensor, precision: str, padded_depth: int) -> tuple[Tensor, Tensor]:
    """Return what a kernel multiplies and its scales (x itself where there are none)."""
    if precision == "int8":
        return quantise_groups(x, padded_depth)
    if precision == "fp8":
        return quantise_rows(x, padded_depth)
    return x, x


def check_precision(precision: str, device: torch.device) -> None:
    """Raise UsageError for a precision that is unknown or that the device has no units for."""
    if precision not in PRECISIONS:
        raise UsageError(f"precision {precision!r}: the kernels know {', '.join(PRECISIONS)}")
    gpu = gpu_of(device)
    if precision == "fp8" and not gpu.has_fp8:
        major, minor = divmod(FP8_CAPABILITY, 10)
        raise UsageError(
            f"fp8 weights need compute capability {major}.{minor} (Ada, Hopper or newer), "
            f"{gpu.name} has {gpu.capability / 10}: use int8 or int8_weight_only"
        )


def pack_linear(
    weight: Tensor, bias: Tensor | None, precision: str, activation_dtype: torch.dtype
) -> FloatLinear | QuantisedLinear:
    """Pack weight [N, K] and bias [N]; float weights are left to torch's matmul, which is cuBLAS.

    Raises UsageError for fp8 on a device without e4m3 tensor cores.
    """
    check_precision(precision, weight.device)
    if precision in FLOAT_PRECISIONS:
        return FloatLinear(weight, bias, precision)
    return QuantisedLinear(weight, bias, precision)
