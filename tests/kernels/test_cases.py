"""Every case of every operation, on each backend that can run here, against its reference.

Without a GPU the Triton kernels run in the interpreter, which computes bf16 wrongly; those cases
are for GPUs, where `tests/gpu/check.py` runs them, and are skipped here with that reason.
"""

from __future__ import annotations

import functools

import pytest
import torch

from dstune.kernels.select import Kernels, select
from dstune.kernels.workbench import catalogue
from dstune.kernels.workbench.case import Case
from dstune.kernels.workbench.verify import prepare, prove, why_not

CASES = catalogue.checks()
BACKENDS = ("triton", "cpu")


@functools.cache
def backend_and_device(name: str) -> tuple[Kernels, torch.device]:
    kernels, _, device = prepare(name)
    return kernels, device


def runnable() -> list[tuple[str, Case]]:
    """What can run here; what cannot is counted by the test below, not collected and skipped."""
    return [
        (name, case)
        for name in BACKENDS
        for case in CASES
        if not why_not(case, *backend_and_device(name))
    ]


@pytest.mark.parametrize(
    "backend,case", [pytest.param(name, case, id=f"{name}-{case.id}") for name, case in runnable()]
)
def test_case(backend: str, case: Case) -> None:
    kernels, device = backend_and_device(backend)
    difference = prove(case, kernels, select("reference", device), device)
    assert difference.passes, difference


def test_nothing_is_left_out_without_a_reason() -> None:
    left_out = {
        name: {why_not(case, *backend_and_device(name)) for case in CASES} - {""}
        for name in BACKENDS
    }
    assert left_out["cpu"] <= {
        f"backend cpu has no {what}" for what in ("fp16", "fp8", "int8_weight_only")
    }
    if not torch.cuda.is_available():
        assert left_out["triton"] == {"the interpreter's bf16 arithmetic is wrong"}
