"""What Triton's runtime would compile for a launch: types, alignment and folded constants.

These are the rules of `triton.runtime.jit`: None and the integer 1 become constants, an integer
that 16 divides and a pointer to 16 aligned bytes say so to the compiler, everything else counts
by type alone. Without the alignment no asynchronous copy is generated and the code doubles.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dstune.kernels.launch import Launch

ALIGNED = [["tt.divisibility", 16]]

_TYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.bool: "u1",
}


@dataclass(frozen=True)
class Specialised:
    """One version of a kernel; launches with an equal `key` share it."""

    kernel: Any  # a function under triton.jit
    signature: Mapping[str, str]  # argument -> type, or "constexpr"
    constants: Mapping[str, Any]
    aligned: tuple[str, ...]  # arguments that 16 divides
    num_warps: int
    num_stages: int

    @property
    def name(self) -> str:
        """The kernel's name."""
        return str(self.kernel.__name__)

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells versions apart."""
        constants = tuple((name, str(value)) for name, value in self.constants.items())
        types = tuple(self.signature.items())
        module = self.kernel.__module__
        return module, self.name, types, constants, self.aligned, self.num_warps, self.num_stages


def specialise(launch: Launch) -> Specialised:
    """Return the version of its kernel that a launch needs."""
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    aligned: list[str] = []
    for parameter in launch.kernel.params:
        name = parameter.name
        value = launch.arguments.get(name, parameter.default)
        may_fold = not parameter.do_not_specialize
        kind = "constexpr" if parameter.is_constexpr else _type(name, value, may_fold)
        signature[name] = kind
        if kind == "constexpr":
            constants[name] = value
        elif may_fold and not parameter.do_not_specialize_on_alignment and _is_aligned(value):
            aligned.append(name)
    return Specialised(launch.kernel, signature, constants, tuple(aligned),
                       launch.num_warps, launch.num_stages)  # fmt: skip


def _type(name: str, value: Any, may_fold: bool) -> str:
    if isinstance(value, Tensor):
        return f"*{_TYPES[value.dtype]}"
    if value is None:
        return "constexpr"
    if isinstance(value, bool):
        return "u1"
    if isinstance(value, int):
        if value == 1 and may_fold:
            return "constexpr"
        return "i32" if -(2**31) <= value < 2**31 else "i64" if value < 2**63 else "u64"
    if isinstance(value, float):
        return "fp32"
    raise TypeError(f"argument {name} of a kernel is a {type(value).__name__}")


def _is_aligned(value: Any) -> bool:
    if isinstance(value, Tensor):  # allocations are aligned; a view into one need not be
        return value.data_ptr() % 16 == 0
    return isinstance(value, int) and not isinstance(value, bool) and value % 16 == 0
