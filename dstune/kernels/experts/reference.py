"""Routed experts in plain torch: a loop over the experts that a step uses."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dstune.errors import UsageError
from dstune.kernels.activation.reference import silu_and_mul
from dstune.kernels.linear.reference import pack_linear


class Experts:
    """Routed SwiGLU experts: sum over the chosen of weight * down(silu(gate x) * (up x))."""

    def __init__(
        self,
        gate_up: Sequence[Tensor],
        down: Sequence[Tensor],
        precision: str,
        activation_dtype: torch.dtype,
    ) -> None:
        self.num_experts = len(gate_up)
        self.features = down[0].shape[1]
        self.precision = precision
        self._gate_up = [pack_linear(w, None, precision, activation_dtype) for w in gate_up]
        self._down = [pack_linear(w, None, precision, activation_dtype) for w in down]
        self.num_bytes = sum(linear.num_bytes for linear in self._gate_up + self._down)

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """Map x [T, D], weights fp32 [T, k], ids int64 [T, k] -> [T, D]; combined in fp32."""
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for expert in ids.unique().tolist():
            token, choice = (ids == expert).nonzero(as_tuple=True)
            y = self._down[expert](silu_and_mul(self._gate_up[expert](x[token])))
            out.index_add_(0, token, y.float() * weights[token, choice].unsqueeze(-1))
        return out.to(x.dtype)


def pack_experts(
    gate_up: Sequence[Tensor], down: Sequence[Tensor], precision: str, activation_dtype: torch.dtype
) -> Experts:
    """Pack per-expert weights: gate_up [2F, D] = [gate | up] and down [D, F] of each."""
    check_shapes(gate_up, down)
    return Experts(gate_up, down, precision, activation_dtype)


def check_shapes(gate_up: Sequence[Tensor], down: Sequence[Tensor]) -> None:
    """Raise UsageError unless the lists hold the same number of matching experts."""
    if not gate_up or len(gate_up) != len(down):
        raise UsageError(f"{len(gate_up)} gate_up weights beside {len(down)} down weights")
    two_f, hidden = gate_up[0].shape
    for first, second in zip(gate_up, down, strict=True):
        if first.shape != (two_f, hidden) or second.shape != (hidden, two_f // 2):
            raise UsageError(
                f"expert weights {tuple(first.shape)} and {tuple(second.shape)} do not match "
                f"{(two_f, hidden)} and {(hidden, two_f // 2)}"
            )
