"""What proves and what times expert gates."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dstune.kernels.select import Kernels
from dstune.kernels.workbench.case import Case, Cost, Inputs

# exp, the division and the order of sums make a few units of 2^-24 of a weight. Ids are integers
# below 256: under this tolerance they must be equal, and so must their order.
RTOL = 4e-6
ATOL = 1e-9


@dataclass(frozen=True)
class _Sizes:
    num_experts: int
    top_k: int
    n_group: int = 1
    topk_group: int = 1

    @property
    def name(self) -> str:
        groups = f"-g{self.n_group}_{self.topk_group}" if self.n_group > 1 else ""
        return f"e{self.num_experts}_{self.top_k}{groups}"


V2_LITE, V2, V3 = _Sizes(64, 6), _Sizes(160, 6, 8, 3), _Sizes(256, 8, 8, 4)


def checks() -> Iterator[Case]:
    """Published shapes and odd ones, with and without groups; equal scores; one token and none."""
    odd = (_Sizes(6, 2), _Sizes(60, 4), _Sizes(6, 2, 3, 1), _Sizes(17, 1), _Sizes(4, 4, 4, 4))
    for sizes in (V2_LITE, V2, V3, *odd):
        yield _gate_softmax(5, sizes, "random", normalise=False)
        yield _gate_sigmoid(5, sizes, "random", normalise=True)
    for sizes in (V2_LITE, V2, V3):
        for kind in ("tied", "equal"):
            yield _gate_softmax(3, sizes, kind, normalise=True)
            yield _gate_sigmoid(3, sizes, kind, normalise=False)
    # More experts than the chosen groups have: the others follow, at 0 and at -inf.
    for make in (_gate_softmax, _gate_sigmoid):
        yield make(3, _Sizes(16, 6, 4, 1), "tied", normalise=False)
        yield make(2, _Sizes(16, 6, 4, 1), "late", normalise=False)
        yield make(0, V3, "random", normalise=True)
        yield make(1, V3, "random", normalise=True)
        yield make(9, V2, "random", normalise=True, pad=5)


def benches() -> Iterator[Case]:
    """DeepSeek-V2-Lite's gate and V3's, a decode step and a prefill."""
    for num_tokens in (32, 4096):
        yield _gate_softmax(num_tokens, V2_LITE, "random", normalise=False)
        yield _gate_sigmoid(num_tokens, V3, "random", normalise=True)


def _logits(num_tokens: int, sizes: _Sizes, kind: str, pad: int, device: torch.device) -> Tensor:
    """Return logits whose scores are far apart, or equal in every backend.

    Tied ones have sigmoids of exactly 0, 1/2 and 1. Among random ones a near tie that rounding
    may turn is once in about 10^4 rows, and inputs are the same at every run.
    """
    shape = (num_tokens, sizes.num_experts + pad)
    if kind == "random":
        return (torch.randn(shape, device=device) * 2)[:, pad:]
    if kind == "equal":
        return torch.zeros(shape, device=device)[:, pad:]
    if kind == "late":  # only the last experts have a score, the others of their group have none
        logits = torch.full(shape, -200.0, device=device)
        logits[:, -2:] = 0
        return logits[:, pad:]
    drawn = torch.randint(0, 3, shape, device=device)
    return torch.tensor([-200.0, 0.0, 30.0]).to(device)[drawn][:, pad:]


def _cost(num_tokens: int, sizes: _Sizes) -> Cost:
    num_bytes = num_tokens * (4 * sizes.num_experts + 12 * sizes.top_k)
    return Cost(num_bytes, num_tokens * sizes.num_experts * (3 + sizes.top_k))


def _name(num_tokens: int, sizes: _Sizes, kind: str, normalise: bool, pad: int) -> str:
    strided = f"-strided{pad}" if pad else ""
    return f"fp32-{num_tokens}x{sizes.name}-{kind}{'-normalised' * normalise}{strided}"


def _gate_softmax(num_tokens: int, sizes: _Sizes, kind: str, normalise: bool, pad: int = 0) -> Case:
    def make(device: torch.device) -> Inputs:
        return {"logits": _logits(num_tokens, sizes, kind, pad, device)}

    def call(kernels: Kernels, inputs: Inputs) -> tuple[Tensor, ...]:
        return kernels.gate_softmax(
            inputs["logits"], sizes.top_k, 1.5, normalise, sizes.n_group, sizes.topk_group
        )

    name = _name(num_tokens, sizes, kind, normalise, pad)
    cost = _cost(num_tokens, sizes)
    return Case("gate_softmax", name, torch.float32, make, call, ATOL, RTOL, cost=cost)


def _gate_sigmoid(num_tokens: int, sizes: _Sizes, kind: str, normalise: bool, pad: int = 0) -> Case:
    def make(device: torch.device) -> Inputs:
        bias = torch.zeros(sizes.num_experts, device=device)
        if kind == "random":
            bias = torch.randn(sizes.num_experts, device=device) / 4
        elif kind == "tied":  # sums with the scores are exact
            bias = torch.randint(-4, 5, (sizes.num_experts,), device=device) / 8
        elif kind == "late":
            bias = bias - 3
        return {"logits": _logits(num_tokens, sizes, kind, pad, device), "bias": bias}

    def call(kernels: Kernels, inputs: Inputs) -> tuple[Tensor, ...]:
        return kernels.gate_sigmoid(
            inputs["logits"], inputs["bias"], sizes.top_k, sizes.n_group, sizes.topk_group, 2.5,
            normalise,
        )  # fmt: skip

    name = _name(num_tokens, sizes, kind, normalise, pad)
    cost = _cost(num_tokens, sizes)
    return Case("gate_sigmoid", name, torch.float32, make, call, ATOL, RTOL, cost=cost)
