"""Routed experts to prove and to time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dstune.kernels.linear.cases import SHORT, strided
from dstune.kernels.select import Kernels
from dstune.kernels.workbench.case import Case, Cost, Inputs


@dataclass(frozen=True)
class Size:
    """One layer's routed experts and a step's tokens."""

    name: str
    num_experts: int
    top_k: int
    hidden: int
    width: int
    num_tokens: int


# Neither hidden size nor width a multiple of a tile or of 64, unless the name says so
ONE = Size("t1", 8, 3, 50, 36, 1)
FEW = Size("t5", 8, 3, 50, 36, 5)
WHOLE = Size("t7-groups", 8, 2, 128, 64, 7)
MANY_EXPERTS = Size("t4", 64, 6, 40, 24, 4)
LONG = Size("t37", 8, 2, 40, 36, 37)
CHUNKS = Size("t100", 64, 6, 16, 8, 100)  # pairs over several chunks of 256
SPANS = Size("t260", 16, 8, 16, 8, 260)  # more pairs than one program sorts
NONE = Size("t0", 8, 2, 40, 36, 0)

# One step of a quantised feature between the products; features are about 1, groups' largest 3
STEP = {"int8": 3 / 127, "fp8": 1 / 8}

Draw = Callable[[Size, torch.device], Tensor]


def checks() -> Iterator[Case]:
    """Yield small cases of every precision, with every way that tokens may choose."""
    for precision in ("fp32", "fp16", "int8", "int8_weight_only", "fp8"):
        dtype = torch.float16 if precision == "fp16" else torch.float32
        sizes = (ONE, FEW, WHOLE, MANY_EXPERTS) if precision != "fp16" else (ONE, FEW)
        for size in sizes:
            yield _check(precision, dtype, size, "scattered", scattered)
    for precision in ("int8", "int8_weight_only"):
        for size in (ONE, FEW):
            yield _check(precision, torch.float16, size, "scattered", scattered)
    for precision in ("fp32", "int8"):
        for size in (FEW, LONG):
            yield _check(precision, torch.float32, size, "one_expert_takes_all", all_to_one)
            yield _check(precision, torch.float32, size, "last_expert_idle", never_the_last)
        yield _check(precision, torch.float32, NONE, "scattered", scattered)
    for precision in ("int8_weight_only", "fp8"):
        yield _check(precision, torch.float32, LONG, "scattered", scattered)
    for size in (CHUNKS, SPANS):
        yield _check("fp32", torch.float32, size, "scattered", scattered)
    yield _check("fp32", torch.float32, SPANS, "one_expert_takes_all", all_to_one)
    for precision in ("bf16", "int8_weight_only", "fp8"):
        yield _check(precision, torch.bfloat16, FEW, "scattered", scattered)


def benches() -> Iterator[Case]:
    """Yield DeepSeek-V2-Lite's and V3's experts beside both ways that torch has."""
    for num_tokens in (1, 8, 32, 2048):
        size = Size(f"v2lite-t{num_tokens}", 64, 6, 2048, 1408, num_tokens)
        for precision in ("bf16", "int8", "int8_weight_only"):
            yield from _bench(precision, size)
    for precision in ("bf16", "int8", "fp8"):
        yield from _bench(precision, Size("v3-t32", 256, 8, 7168, 2048, 32))


def scattered(size: Size, device: torch.device) -> Tensor:
    """Choose k different experts per token at random."""
    return torch.rand(size.num_tokens, size.num_experts, device=device).topk(size.top_k).indices


def never_the_last(size: Size, device: torch.device) -> Tensor:
    """Choose as `scattered`, but leave the last expert idle."""
    scores = torch.rand(size.num_tokens, size.num_experts - 1, device=device)
    return scores.topk(size.top_k).indices


def all_to_one(size: Size, device: torch.device) -> Tensor:
    """Choose expert 2 every time, also twice for one token: the kernels do not mind."""
    return torch.full((size.num_tokens, size.top_k), 2, device=device)


def pack_and_call(kernels: Kernels, inputs: Inputs) -> tuple[Tensor, ...]:
    """Pack once per backend, since only the products are timed, and call."""
    packed = f"packed by {kernels.backend}"
    x = inputs["x"]
    if packed not in inputs:
        inputs[packed] = kernels.pack_experts(
            inputs["gate_up"], inputs["down"], inputs["precision"], x.dtype
        )
    return (inputs[packed](x, inputs["weights"], inputs["ids"]),)


def _make(precision: str, dtype: torch.dtype, size: Size, choose: Draw) -> Callable[..., Inputs]:
    def make(device: torch.device) -> Inputs:
        def weight(*shape: int) -> Tensor:
            return (torch.randn(shape, device=device) / shape[-1] ** 0.5).to(dtype)

        return {
            "x": strided(torch.randn(size.num_tokens, size.hidden, device=device).to(dtype)),
            "weights": torch.rand(size.num_tokens, size.top_k, device=device),
            "ids": choose(size, device),
            "gate_up": [weight(2 * size.width, size.hidden) for _ in range(size.num_experts)],
            "down": [weight(size.hidden, size.width) for _ in range(size.num_experts)],
            "precision": precision,
        }

    return make


def _check(precision: str, dtype: torch.dtype, size: Size, how: str, choose: Draw) -> Case:
    # Outputs are about 1 (of the sum over the choices). Half types: the features between the
    # products are rounded once, and once more by the reference before SwiGLU.
    atol = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    if precision in STEP:
        # A feature that fp32's last bit moves over a rounding boundary is one step off, times a
        # weight of 3 / sqrt(width) at most
        atol = max(atol, STEP[precision] * 3 / size.width**0.5)
    name = f"{precision}-{SHORT[dtype]}-e{size.num_experts}-top{size.top_k}-{size.name}-{how}"
    return Case("pack_experts", name, dtype, _make(precision, dtype, size, choose), pack_and_call,
                atol, needs_fp8=precision == "fp8")  # fmt: skip


def _bench(precision: str, size: Size) -> Iterator[Case]:
    dtype = torch.bfloat16

    def make(device: torch.device) -> Inputs:
        def stack(*shape: int) -> Tensor:
            return torch.randn(shape, device=device, dtype=dtype).mul_(shape[-1] ** -0.5)

        gate_up = stack(size.num_experts, 2 * size.width, size.hidden)
        down = stack(size.num_experts, size.hidden, size.width)
        return {
            "x": torch.randn(size.num_tokens, size.hidden, device=device, dtype=dtype),
            "weights": torch.rand(size.num_tokens, size.top_k, device=device),
            "ids": scattered(size, device),
            "gate_up": list(gate_up.unbind()),
            "down": list(down.unbind()),
            "stacked": (gate_up, down),
            "precision": precision,
        }

    rivals: dict[str, Callable[[Inputs], Tensor]] = {"loop": loop_over_experts}
    if hasattr(torch, "_grouped_mm"):
        rivals["grouped_mm"] = grouped_mm
    # bf16 keeps 8 bits of features and outputs of about 1; a step of a quantised feature is
    # averaged over the width
    for name, torch_call in rivals.items():
        yield Case("pack_experts", f"{precision}-{size.name}-beside_{name}", dtype, make,
                   pack_and_call, 6e-2, 2**-6, precision == "fp8", _cost(precision, size),
                   torch_call)  # fmt: skip


def _cost(precision: str, size: Size) -> Cost:
    """Read the experts that random choices are expected to use, once."""
    used = size.num_experts * (1 - (1 - size.top_k / size.num_experts) ** size.num_tokens)
    values = 3 * size.hidden * size.width
    weight_bytes = values * (2 if precision == "bf16" else 1)
    token_bytes = 2 * 2 * size.num_tokens * size.hidden
    flops = 2 * values * size.num_tokens * size.top_k
    return Cost(round(used * weight_bytes) + token_bytes, flops)


def loop_over_experts(inputs: Inputs) -> Tensor:
    """Do as most model code does: gather, two products and add for each expert in use."""
    x, ids, weights = inputs["x"], inputs["ids"], inputs["weights"]
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in ids.unique().tolist():
        token, choice = (ids == expert).nonzero(as_tuple=True)
        gate, up = F.linear(x[token], inputs["gate_up"][expert]).chunk(2, dim=-1)
        y = F.linear(F.silu(gate) * up, inputs["down"][expert])
        out.index_add_(0, token, y.float() * weights[token, choice].unsqueeze(-1))
    return out.to(x.dtype)


def grouped_mm(inputs: Inputs) -> Tensor:
    """Do it with torch's grouped matmul: sort by expert, two grouped products, add."""
    x, ids, weights = inputs["x"], inputs["ids"], inputs["weights"]
    gate_up, down = inputs["stacked"]
    order = ids.flatten().argsort(stable=True)
    token = order // ids.shape[1]
    experts = torch.arange(len(gate_up), device=x.device)
    ends = torch.searchsorted(ids.flatten()[order], experts, right=True).to(torch.int32)
    both = torch._grouped_mm(x[token], gate_up.transpose(1, 2), offs=ends)
    gate, up = both.chunk(2, dim=-1)
    y = torch._grouped_mm(F.silu(gate) * up, down.transpose(1, 2), offs=ends)
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    out.index_add_(0, token, y.float() * weights.flatten()[order].unsqueeze(-1))
    return out.to(x.dtype)
