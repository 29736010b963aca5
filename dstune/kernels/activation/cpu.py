"""SwiGLU's gate in one native call."""

import torch
from torch import Tensor

from dstune.kernels.native import lib
from dstune.kernels.native.arguments import activation_code, rows


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up for gate_up [T, 2F] -> [T, F]; see the reference."""
    gate_up = rows(gate_up)
    num_tokens, width = gate_up.shape
    features = width // 2
    out = gate_up.new_empty(num_tokens, features)
    lib().silu_and_mul(
        gate_up.data_ptr(), gate_up.stride()[0], out.data_ptr(), num_tokens, features,
        activation_code(gate_up), torch.get_num_threads(),
    )  # fmt: skip
    return out
