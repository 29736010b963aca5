"""Precision: what weights are multiplied in, and the element type of activations beside it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dstune.errors import KnobError

DTYPES: dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.int8,
}


@dataclass(frozen=True)
class Precision:
    """A legal precision on a device: `name` of the weights' products, dtype of activations."""

    name: str
    activations: torch.dtype
    device: torch.device


def resolve_precision(name: str, device: torch.device) -> Precision:
    """The precision of that name on a device.

    int8 (W8A8) keeps its activations in bf16 between the products. Raises `KnobError` where the
    device has no fast path: fp16 on a CPU is slower than fp32.
    """
    if name == "fp16" and device.type == "cpu":
        raise KnobError("precision fp16 needs a GPU; on a CPU use bf16 or int8")
    activations = torch.bfloat16 if name == "int8" else DTYPES[name]
    return Precision(name, activations, device)


def resolve_kv_dtype(name: str, precision: Precision) -> torch.dtype:
    """The element type of the KV cache; `auto` follows the activations.

    Raises `KnobError` for fp16 on a CPU, as above.
    """
    if name == "fp16" and precision.device.type == "cpu":
        raise KnobError("kv_cache_dtype fp16 needs a GPU; on a CPU use bf16 or int8")
    return precision.activations if name == "auto" else DTYPES[name]
