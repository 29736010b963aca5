"""Precision: what weights are multiplied in, and the element type of activations beside it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dstune.errors import KnobError
from dstune.kernels.precision import FLOAT_PRECISIONS, FP8_CAPABILITY, KV_DTYPES
from dstune.kernels.select import Kernels


@dataclass(frozen=True)
class Precision:
    """A legal precision on a device: `name` of the weights' products, dtype of activations."""

    name: str
    activations: torch.dtype
    device: torch.device


def resolve_precision(name: str, device: torch.device, kernels: Kernels) -> Precision:
    """The precision of that name on a device.

    The quantised ones keep their activations in bf16 between the products. Raises `KnobError`
    where the kernels or the device lack it.
    """
    _check("precision", name, kernels.precisions, device, kernels)
    return Precision(name, FLOAT_PRECISIONS.get(name, torch.bfloat16), device)


def resolve_kv_dtype(name: str, precision: Precision, kernels: Kernels) -> torch.dtype:
    """The element type of the KV cache; `auto` follows the activations.

    Raises `KnobError` where the kernels or the device lack it.
    """
    if name == "auto":
        return precision.activations
    _check("kv_cache_dtype", name, kernels.kv_dtypes, precision.device, kernels)
    return KV_DTYPES[name]


def _check(
    knob: str, name: str, known: tuple[str, ...], device: torch.device, kernels: Kernels
) -> None:
    if name == "fp16" and kernels.backend == "cpu":
        raise KnobError(f"{knob} fp16 needs a GPU; on a CPU use bf16 or int8")
    if name in known:
        return
    if name == "fp8" and kernels.backend == "triton":
        raise KnobError(
            f"{knob} fp8 needs a GPU of compute capability "
            f"{FP8_CAPABILITY // 10}.{FP8_CAPABILITY % 10} or newer; use int8"
        )
    raise KnobError(
        f"{knob} {name}: backend {kernels.backend} on {device} has {', '.join(known)}; use one of "
        "them, a GPU, or backend: reference"
    )
