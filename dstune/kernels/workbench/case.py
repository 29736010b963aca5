"""One thing to prove or to time: an operation, its inputs, and what they cost.

Every operation's folder has a `cases.py` with `checks()`, many small cases with odd sizes for
proving, and `benches()`, few cases of real models' sizes for timing and for compiling ahead of
time. A case makes its inputs on any device, `meta` included, and never reads their values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dstune.kernels.select import Kernels

Inputs = dict[str, Any]
"""Tensors, caches, batches and numbers by name; whatever a call writes to is among them."""


@dataclass(frozen=True)
class Cost:
    """What an ideal implementation moves and computes."""

    num_bytes: int  # read once and written once, weights and scales included
    num_flops: int  # a multiply-add counts as two


@dataclass(frozen=True)
class Case:
    """One operation on inputs of one size and type."""

    operation: str  # the field of Kernels that is called: paged_attention, pack_linear, ...
    name: str  # sizes and types, unique beside the operation: "bf16-kv_int8-block32-h8_2_64"
    dtype: torch.dtype  # of activations; bf16 is not proved in the interpreter
    make: Callable[[torch.device], Inputs]  # draws from torch's generator, which the caller seeds
    call: Callable[[Kernels, Inputs], tuple[Tensor, ...]]  # returns outputs and written inputs
    atol: float  # on the largest absolute difference from the reference, with its reason beside it
    rtol: float = 0.0
    needs_fp8: bool = False  # a device without e4m3 cannot run it
    cost: Cost | None = None  # of a bench
    torch_call: Callable[[Inputs], Any] | None = None  # the same with torch's own operation

    @property
    def id(self) -> str:
        """Operation and name."""
        return f"{self.operation}-{self.name}"
