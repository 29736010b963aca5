"""Rotary position embedding in one native call."""

import torch
from torch import Tensor

from dstune.kernels.native import lib
from dstune.kernels.native.arguments import activation_code


def apply_rope(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> None:
    """Rotate x [T, H, D] in place; x may be a strided view. See the reference."""
    num_tokens, num_heads, dim = x.shape
    token_stride, head_stride, last = x.stride()
    if last != 1:
        raise ValueError("apply_rope needs a contiguous last dimension")
    lib().apply_rope(
        x.data_ptr(), token_stride, head_stride, positions.data_ptr(), cos.data_ptr(),
        sin.data_ptr(), num_tokens, num_heads, dim // 2, interleaved, activation_code(x),
        torch.get_num_threads(),
    )  # fmt: skip
