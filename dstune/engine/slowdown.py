"""A slowdown that is planted on purpose, so that tests can prove that it is found.

`python -m dstune.server --slow step=0.25` makes every step a quarter slower than it is, and
`--slow paged_attention=0.5` every call of that operation by half. It waits busily, as slower code
would, and only where the clock is the CPU's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dstune.errors import UsageError
from dstune.kernels.select import OPERATIONS, Kernels, wrapped

STEP = "step"
LAYERS = ("linear", "experts", "embedding")  # whatever their role
TARGETS = (STEP, *OPERATIONS, *LAYERS)


@dataclass(frozen=True)
class Slowdown:
    """A share of its own time that something takes longer."""

    target: str  # one of TARGETS
    share: float

    def stretch(self, start_ns: int, now_ns: Callable[[], int]) -> None:
        """Waits busily until what began at `start_ns` has taken 1 + share times its time."""
        end_ns = now_ns()
        until_ns = end_ns + int((end_ns - start_ns) * self.share)
        while now_ns() < until_ns:
            pass

    def slowed(self, kernels: Kernels, device: torch.device, now_ns: Callable[[], int]) -> Kernels:
        """The kernels with the slow operation; the same ones where a step is what is slow.

        Raises `UsageError` for an operation on a device that computes while the CPU goes on.
        """
        if self.target == STEP:
            return kernels
        if device.type != "cpu":
            raise UsageError(f"--slow {self.target} needs device cpu; on {device} only step works")

        def wrap(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
            if self.target not in (name, name.partition(".")[0]):
                return function

            def call(*arguments: Any) -> Any:
                start_ns = now_ns()
                result = function(*arguments)
                self.stretch(start_ns, now_ns)
                return result

            return call

        return wrapped(kernels, wrap)


def parse_slowdown(text: str) -> Slowdown:
    """The slowdown that TARGET=SHARE names; raises `UsageError` for anything else."""
    target, _, written = text.partition("=")
    if target not in TARGETS:
        raise UsageError(f"--slow {text}: {target!r} is none of {', '.join(TARGETS)}")
    try:
        share = float(written)
    except ValueError:
        share = math.nan
    if not 0 <= share < math.inf:
        raise UsageError(f"--slow {text}: write {target}=SHARE, such as {target}=0.25")
    return Slowdown(target, share)
