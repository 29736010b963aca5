"""The one way from a wrapper to a Triton kernel, so that launches can also be counted.

While `recording` nothing runs: the launches are kept instead. That is how kernels are compiled
ahead of time for a device that is not here, from tensors without storage (`meta`), with the very
tiles and specialisations that the wrappers choose.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import triton

from dstune.kernels.device import Gpu, pretending


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel: its arguments by name, constants included."""

    kernel: Any  # a function under triton.jit
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    num_warps: int
    num_stages: int


_recorders: list[Callable[[Launch], None]] = []


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    *arguments: Any,
    num_warps: int = 4,
    num_stages: int = 3,
    **constants: Any,
) -> None:
    """Run kernel[grid] on positional arguments and named constants; an empty grid does nothing.

    Tensors must all lie on one device. Under the interpreter warps and stages mean nothing.
    """
    if 0 in grid:
        return
    if _recorders:
        names = kernel.arg_names
        bound = dict(zip(names, arguments, strict=False)) | constants
        _recorders[-1](Launch(kernel, grid, bound, num_warps, num_stages))
        return
    kernel[grid](*arguments, num_warps=num_warps, num_stages=num_stages, **constants)


@contextmanager
def recording(gpu: Gpu) -> Iterator[list[Launch]]:
    """Keep launches instead of running them, as if on `gpu`."""
    kept: list[Launch] = []
    _recorders.append(kept.append)
    try:
        with pretending(gpu):
            yield kept
    finally:
        _recorders.pop()


def next_power_of_2(n: int) -> int:
    """Return the least power of two that is not below n; tiles must have such sizes."""
    return int(triton.next_power_of_2(n))


def ceil_div(a: int, b: int) -> int:
    """Return a / b rounded up."""
    return -(-a // b)
