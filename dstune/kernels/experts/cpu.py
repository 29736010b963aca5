"""Routed experts in one native call over the packed weights of all experts."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dstune.kernels.experts.reference import check_shapes
from dstune.kernels.linear.cpu import PackedWeight, check_precision
from dstune.kernels.native import lib
from dstune.kernels.native.arguments import activation_code, pointer, rows


class CpuExperts:
    """Routed SwiGLU experts; a token's result does not depend on the other tokens."""

    def __init__(self, gate_up: Sequence[Tensor], down: Sequence[Tensor], precision: str) -> None:
        self.num_experts = len(gate_up)
        self.precision = precision
        self.features = down[0].shape[1]
        self._hidden = down[0].shape[0]
        self._gate_up, self._down = _Stack(gate_up, precision), _Stack(down, precision)
        self.num_bytes = self._gate_up.num_bytes + self._down.num_bytes

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """Map x [T, D], weights fp32 [T, k], ids int64 [T, k] -> [T, D]; combined in fp32."""
        x = rows(x)
        weights, ids = weights.float().contiguous(), ids.contiguous()
        num_tokens, top_k = ids.shape
        out = x.new_empty(num_tokens, self._hidden)
        lib().experts(
            x.data_ptr(), x.stride(0), weights.data_ptr(), ids.data_ptr(), out.data_ptr(),
            *self._gate_up.pointers, *self._down.pointers, num_tokens, top_k, self.num_experts,
            self._hidden, self.features, self._gate_up.code, activation_code(x),
            torch.get_num_threads(),
        )  # fmt: skip
        return out


class _Stack:
    """One projection of all experts, expert after expert in memory."""

    def __init__(self, weights: Sequence[Tensor], precision: str) -> None:
        packed = [PackedWeight(weight, precision) for weight in weights]
        self.code = packed[0].code
        self._data = torch.stack([p.data for p in packed])
        scales = [p.column_scale for p in packed if p.column_scale is not None]
        self._scale = torch.stack(scales) if scales else None
        self.pointers = (self._data.data_ptr(), pointer(self._scale))
        self.num_bytes = sum(p.num_bytes for p in packed)


def pack_experts(
    gate_up: Sequence[Tensor], down: Sequence[Tensor], precision: str, activation_dtype: torch.dtype
) -> CpuExperts:
    """Pack per-expert weights: gate_up [2F, D] = [gate | up] and down [D, F] of each."""
    check_precision(precision)
    check_shapes(gate_up, down)
    return CpuExperts(gate_up, down, precision)
