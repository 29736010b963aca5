"""Picks the backend of every operation once, so that a step makes no decisions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from dstune.errors import UsageError
from dstune.kernels import native
from dstune.kernels.activation.op import SILU_AND_MUL
from dstune.kernels.attention.op import DENSE_ATTENTION, LATENT_ATTENTION, PAGED_ATTENTION
from dstune.kernels.cache_io.op import GATHER_LATENT, WRITE_KV, WRITE_LATENT
from dstune.kernels.experts.op import PACK_EXPERTS
from dstune.kernels.gating.op import GATE_SIGMOID, GATE_SOFTMAX
from dstune.kernels.linear.op import PACK_LINEAR
from dstune.kernels.norm.op import ADD_RMS_NORM, RMS_NORM
from dstune.kernels.rope.op import APPLY_ROPE
from dstune.kernels.sampling.op import SAMPLE

BACKENDS = ("reference", "cpu")


class Linear(Protocol):
    """A linear layer whose weight is packed for one precision."""

    in_features: int
    out_features: int
    precision: str  # fp32, bf16, fp16 or int8 (W8A8)
    num_bytes: int  # of the packed weight and its scales

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [M, K] -> [M, N] in x's dtype."""
        ...


class Experts(Protocol):
    """The routed experts of one layer, packed for one precision."""

    num_experts: int
    precision: str
    num_bytes: int

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """Map x [T, D], weights fp32 [T, k], ids int64 [T, k] -> [T, D]."""
        ...


PackLinear = Callable[[Tensor, Tensor | None, str, torch.dtype], Linear]
PackExperts = Callable[[Sequence[Tensor], Sequence[Tensor], str, torch.dtype], Experts]
Gate = Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Kernels:
    """The operations of one backend; their contracts stand in each `reference.py`."""

    backend: str
    pack_linear: PackLinear
    pack_experts: PackExperts
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    apply_rope: Callable[[Tensor, Tensor, Tensor, Tensor, bool], None]
    silu_and_mul: Callable[[Tensor], Tensor]
    write_kv: Callable[..., None]
    write_latent: Callable[..., None]
    gather_latent: Callable[..., tuple[Tensor, Tensor]]
    paged_attention: Callable[..., Tensor]
    latent_attention: Callable[..., Tensor]
    dense_attention: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    gate_softmax: Gate
    gate_sigmoid: Gate
    sample: Callable[..., Tensor]


def select(backend: str, device: torch.device) -> Kernels:
    """Return a backend's operations: reference, cpu, or auto (the fastest that the device has).

    Raises UsageError for a backend that is unknown or that cannot run on the device; nothing is
    replaced silently. The cpu backend compiles its native code here, once per machine.
    """
    if backend == "auto":
        backend = "cpu" if device.type == "cpu" else "reference"
    if backend not in BACKENDS:
        raise UsageError(f"backend {backend!r} is unknown; choose auto, {' or '.join(BACKENDS)}")
    if backend == "cpu":
        if device.type != "cpu":
            raise UsageError(f"backend 'cpu' cannot run on {device}; choose auto or reference")
        native.load()
    operations: dict[str, Any] = {name: table[backend] for name, table in _OPERATIONS.items()}
    return Kernels(backend=backend, **operations)


_OPERATIONS: dict[str, dict[str, Callable[..., Any]]] = {
    "pack_linear": PACK_LINEAR,
    "pack_experts": PACK_EXPERTS,
    "rms_norm": RMS_NORM,
    "add_rms_norm": ADD_RMS_NORM,
    "apply_rope": APPLY_ROPE,
    "silu_and_mul": SILU_AND_MUL,
    "write_kv": WRITE_KV,
    "write_latent": WRITE_LATENT,
    "gather_latent": GATHER_LATENT,
    "paged_attention": PAGED_ATTENTION,
    "latent_attention": LATENT_ATTENTION,
    "dense_attention": DENSE_ATTENTION,
    "gate_softmax": GATE_SOFTMAX,
    "gate_sigmoid": GATE_SIGMOID,
    "sample": SAMPLE,
}
