"""What this machine can do at most: bytes read and products done per second, measured now."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

READ_BYTES = 1 << 29  # far beyond any cache
MATRIX = 2048


def best_seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """The fastest of a few runs: a limit is what the machine does undisturbed."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def read_bytes_per_s() -> float:
    """Memory bandwidth: a dot product over fp32 vectors that fit no cache."""
    half = torch.ones(READ_BYTES // 8)
    other = torch.ones(READ_BYTES // 8)
    return READ_BYTES / best_seconds(lambda: torch.dot(half, other))


def operations_per_s(precision: str) -> float:
    """Multiplications and additions of a large square matrix product in bf16 or int8."""
    left = torch.randn(MATRIX, MATRIX)
    right = torch.randn(MATRIX, MATRIX)
    if precision == "int8":
        a, b = (left * 20).to(torch.int8), (right * 20).to(torch.int8)
        seconds = best_seconds(lambda: torch._int_mm(a, b.t()))
    else:
        dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[precision]
        x, y = left.to(dtype), right.to(dtype)
        seconds = best_seconds(lambda: x @ y)
    return 2 * MATRIX**3 / seconds
