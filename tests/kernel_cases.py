"""Small cases over rms_norm, and backends that do it wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dstune.kernels.select import Kernels, select
from dstune.kernels.workbench.case import Case, Cost, Inputs

CPU = torch.device("cpu")
REFERENCE = select("reference", CPU)


def norm_case(name: str = "d8", dtype: torch.dtype = torch.float32, **options: Any) -> Case:
    def make(device: torch.device) -> Inputs:
        return {"x": torch.randn(3, 8, device=device, dtype=dtype),
                "weight": torch.ones(8, device=device, dtype=dtype)}  # fmt: skip

    def call(kernels: Kernels, inputs: Inputs) -> tuple[Tensor, ...]:
        return (kernels.rms_norm(inputs["x"], inputs["weight"], 1e-6),)

    options = {"cost": Cost(192, 96), **options}
    return Case("rms_norm", name, dtype, make, call, atol=1e-5, **options)


def backend(rms_norm: Callable[[Tensor, Tensor, float], Tensor], name: str = "triton") -> Kernels:
    """The reference with another rms_norm."""
    return replace(REFERENCE, backend=name, rms_norm=rms_norm)


def wrong(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return REFERENCE.rms_norm(x, weight, eps) + 0.01


def forgetful(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Writes all rows but the last into fresh memory."""
    out = torch.empty_like(x)
    out[:-1] = REFERENCE.rms_norm(x[:-1], weight, eps)
    return out


def crashing(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    raise RuntimeError("an illegal memory access was encountered\nmore of it")
