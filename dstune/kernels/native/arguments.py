"""What every cpu.py checks and passes: dtype codes and layouts that the native code can read."""

import torch
from torch import Tensor

from dstune.errors import UsageError

CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3}  # Dtype in vec.h
_ACTIVATIONS = (torch.float32, torch.bfloat16)


def activation_code(tensor: Tensor) -> int:
    """Return the code of an activation's dtype; the cpu backend computes on fp32 and bf16."""
    dtype = tensor.dtype
    if dtype not in _ACTIVATIONS:
        raise UsageError(
            f"the cpu backend has no {dtype} activations: use fp32 or bf16, or backend: reference"
        )
    return CODES[dtype]


def rows(tensor: Tensor) -> Tensor:
    """Return tensor itself if its last dimension is contiguous, else a contiguous copy."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def pointer(tensor: Tensor | None) -> int | None:
    """Return the address of an optional tensor's data."""
    return None if tensor is None else tensor.data_ptr()
