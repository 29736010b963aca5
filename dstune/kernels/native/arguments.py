"""What every cpu.py checks and passes: dtype codes and layouts that the native code can read."""

import torch
from torch import Tensor

from dstune.errors import UsageError

NULL = 0
CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3}  # Dtype in vec.h
_ACTIVATIONS = {dtype: CODES[dtype] for dtype in (torch.float32, torch.bfloat16)}


def activation_code(tensor: Tensor) -> int:
    """Return the code of an activation's dtype; the cpu backend computes on fp32 and bf16."""
    code = _ACTIVATIONS.get(tensor.dtype)
    if code is None:
        raise UsageError(
            f"the cpu backend has no {tensor.dtype} activations: "
            "use fp32 or bf16, or backend: reference"
        )
    return code


def rows(tensor: Tensor) -> Tensor:
    """Return tensor itself if its last dimension is contiguous, else a contiguous copy."""
    # stride() takes half as long as stride(-1), and a decode step asks some 300 times.
    return tensor if tensor.stride()[-1] == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def like(tensor: Tensor, x: Tensor) -> Tensor:
    """Return tensor in x's dtype, itself if it has it; keep it until the native call is over."""
    return tensor if tensor.dtype == x.dtype else tensor.to(x.dtype)


def pointer(tensor: Tensor | None) -> int:
    """Return the address of an optional tensor's data, null for None."""
    return NULL if tensor is None else tensor.data_ptr()
