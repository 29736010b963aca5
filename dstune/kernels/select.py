"""Picks the backend of every operation once, so that a step makes no decisions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from dstune.errors import UsageError
from dstune.kernels import interpreter, native
from dstune.kernels.activation.op import SILU_AND_MUL
from dstune.kernels.attention.op import DENSE_ATTENTION, LATENT_ATTENTION, PAGED_ATTENTION
from dstune.kernels.cache_io.op import (
    GATHER_LATENT,
    ROTATE_AND_WRITE_KV,
    ROTATE_AND_WRITE_LATENT,
    WRITE_KV,
    WRITE_LATENT,
)
from dstune.kernels.device import gpu_of
from dstune.kernels.experts.op import PACK_EXPERTS
from dstune.kernels.gating.op import GATE_SIGMOID, GATE_SOFTMAX
from dstune.kernels.later import Later
from dstune.kernels.linear.op import PACK_LINEAR
from dstune.kernels.norm.op import ADD_RMS_NORM, RMS_NORM
from dstune.kernels.precision import KV_DTYPES, PRECISIONS
from dstune.kernels.rope.op import APPLY_ROPE
from dstune.kernels.sampling.op import SAMPLE

BACKENDS = ("triton", "cpu", "reference")


class Linear(Protocol):
    """A linear layer whose weight is packed for one precision."""

    in_features: int
    out_features: int
    precision: str  # one of kernels.precision.PRECISIONS
    num_bytes: int  # of the packed weight and its scales

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [M, K] -> [M, N] in x's dtype."""
        ...


class Experts(Protocol):
    """The routed experts of one layer, packed for one precision."""

    num_experts: int
    features: int  # of an expert between its two products
    precision: str
    num_bytes: int

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """Map x [T, D], weights fp32 [T, k], ids int64 [T, k] -> [T, D]."""
        ...


PackLinear = Callable[[Tensor, Tensor | None, str, torch.dtype], Linear]
PackExperts = Callable[[Sequence[Tensor], Sequence[Tensor], str, torch.dtype], Experts]
Gate = Callable[..., tuple[Tensor, Tensor]]
Wrap = Callable[[str, Callable[..., Any]], Callable[..., Any]]
"""Takes an operation's name and what computes it, and returns what is called in its place."""


@dataclass(frozen=True)
class Kernels:
    """The operations of one backend; their contracts stand in each `reference.py`."""

    backend: str
    precisions: tuple[str, ...]  # of weights, that it has on this device
    kv_dtypes: tuple[str, ...]  # of the KV cache, likewise
    pack_linear: PackLinear
    pack_experts: PackExperts
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    apply_rope: Callable[[Tensor, Tensor, Tensor, Tensor, bool], None]
    silu_and_mul: Callable[[Tensor], Tensor]
    write_kv: Callable[..., None]
    rotate_and_write_kv: Callable[..., None]
    write_latent: Callable[..., None]
    rotate_and_write_latent: Callable[..., None]
    gather_latent: Callable[..., tuple[Tensor, Tensor]]
    paged_attention: Callable[..., Tensor]
    latent_attention: Callable[..., Tensor]
    dense_attention: Callable[..., Tensor]
    gate_softmax: Gate
    gate_sigmoid: Gate
    sample: Callable[..., Tensor]
    wrap_layer: Wrap | None = None  # called with every layer; see `wrapped`


def select(backend: str, device: torch.device) -> Kernels:
    """Return a backend's operations: triton, cpu, reference, or auto (the fastest on the device).

    Raises UsageError for a backend that is unknown or that cannot run on the device; nothing is
    replaced silently. The cpu backend compiles its native code here, once per machine.
    """
    if backend == "auto":
        backend = {"cuda": "triton", "cpu": "cpu"}.get(device.type, "reference")
    if backend not in BACKENDS:
        raise UsageError(f"backend {backend!r} is unknown; choose auto, {', '.join(BACKENDS)}")
    precisions, kv_dtypes = _BEGIN[backend](device)
    operations: dict[str, Any] = {}
    for name, table in _OPERATIONS.items():
        found = table[backend]
        operations[name] = found.load() if isinstance(found, Later) else found
    return Kernels(backend, precisions, kv_dtypes, **operations)


def _begin_triton(device: torch.device) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if device.type == "cpu" and not interpreter.is_enabled():
        raise UsageError(
            f"backend 'triton' needs a CUDA device; {interpreter.VARIABLE}=1 in the environment "
            "runs its kernels in Triton's interpreter, far slower than backend cpu"
        )
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"there is no {device} here; choose device cpu")
    if device.type not in ("cpu", "cuda", "meta"):  # meta: launches are recorded, not run
        raise UsageError(f"backend 'triton' cannot run on {device}; choose auto or reference")
    lacking = () if gpu_of(device).has_fp8 else ("fp8",)
    precisions = tuple(name for name in PRECISIONS if name not in lacking)
    return precisions, tuple(name for name in KV_DTYPES if name not in lacking)


def _begin_cpu(device: torch.device) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if device.type != "cpu":
        raise UsageError(f"backend 'cpu' cannot run on {device}; choose auto or triton")
    native.load()
    return ("fp32", "bf16", "int8"), ("fp32", "bf16", "int8")


def _begin_reference(device: torch.device) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return PRECISIONS, tuple(KV_DTYPES)


_BEGIN = {"triton": _begin_triton, "cpu": _begin_cpu, "reference": _begin_reference}

_OPERATIONS: dict[str, Mapping[str, Any]] = {
    "pack_linear": PACK_LINEAR,
    "pack_experts": PACK_EXPERTS,
    "rms_norm": RMS_NORM,
    "add_rms_norm": ADD_RMS_NORM,
    "apply_rope": APPLY_ROPE,
    "silu_and_mul": SILU_AND_MUL,
    "write_kv": WRITE_KV,
    "rotate_and_write_kv": ROTATE_AND_WRITE_KV,
    "write_latent": WRITE_LATENT,
    "rotate_and_write_latent": ROTATE_AND_WRITE_LATENT,
    "gather_latent": GATHER_LATENT,
    "paged_attention": PAGED_ATTENTION,
    "latent_attention": LATENT_ATTENTION,
    "dense_attention": DENSE_ATTENTION,
    "gate_softmax": GATE_SOFTMAX,
    "gate_sigmoid": GATE_SIGMOID,
    "sample": SAMPLE,
}

OPERATIONS = tuple(name for name in _OPERATIONS if not name.startswith("pack_"))
"""Those that compute; the packers make layers, which compute under names of their own."""


class WrappedLayer:
    """A layer with another call; everything else is the layer's own."""

    def __init__(self, layer: Any, call: Callable[..., Any]) -> None:
        self._layer = layer
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    def __call__(self, *arguments: Any) -> Any:
        """Compute the layer by way of the other call."""
        return self._call(*arguments)


def wrapped(kernels: Kernels, wrap: Wrap) -> Kernels:
    """Return the same operations, each as `wrap(name, operation)` returns it.

    Layers are wrapped once they are packed, under the names that the model gives them: `linear.`
    with the layer's role, `experts`, and `embedding`.
    """
    inner = kernels.wrap_layer

    def wrap_layer(name: str, layer: Callable[..., Any]) -> Callable[..., Any]:
        layer = layer if inner is None else inner(name, layer)
        call = wrap(name, layer)
        return layer if call is layer else WrappedLayer(layer, call)

    operations: dict[str, Any] = {name: wrap(name, getattr(kernels, name)) for name in OPERATIONS}
    return replace(kernels, **operations, wrap_layer=wrap_layer)
