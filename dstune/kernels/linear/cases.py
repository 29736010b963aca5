"""Linear layers to prove and to time."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from dstune.kernels.precision import FLOAT_PRECISIONS
from dstune.kernels.select import Kernels
from dstune.kernels.workbench.case import Case, Cost, Inputs

# (M, N, K): fewer columns than a tile, depth that ends inside a group of 64, whole groups, more
# rows than a decode step has
SHAPES = [(1, 33, 7), (3, 80, 50), (16, 40, 65), (17, 96, 192), (70, 70, 300)]
LARGE = (130, 260, 70)  # tiles of 128 x 128, several in both directions
DEEP = (3, 40, 4160)  # split along the depth, the last part shorter
# Outputs are about 1. fp32: the order of the sum over K terms; half types: one unit in the last
# place where the sum falls on the other side of a tie.
ATOL = {torch.float32: 1e-5, torch.float16: 5e-4, torch.bfloat16: 4e-3}
RTOL = {torch.float32: 0.0, torch.float16: 2**-10, torch.bfloat16: 2**-7}
SHORT = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


def checks() -> Iterator[Case]:
    """Yield small cases of every precision."""
    for precision in ("int8", "int8_weight_only", "fp8"):
        for number, shape in enumerate([*SHAPES, LARGE, DEEP]):
            dtype = (torch.float32, torch.float16)[number % 2]
            yield _check(precision, shape, dtype, has_bias=number % 2 == 1)
        yield _check(precision, (5, 40, 130), torch.float16, has_bias=False)
        yield _check(precision, (0, 33, 64), torch.float32, has_bias=True)
        yield _check(precision, (4, 33, 64), torch.bfloat16, has_bias=True)
    for precision, dtype in FLOAT_PRECISIONS.items():
        yield _check(precision, (3, 33, 50), dtype, has_bias=True)
    yield _exact_sums()


def benches() -> Iterator[Case]:
    """Yield Llama-3-8B's and DeepSeek-V2-Lite's largest layers, from one token to a prefill."""
    for num_columns, depth in ((4096, 4096), (14336, 4096), (2048, 10944)):
        for num_rows in (1, 8, 32, 2048):
            for precision in ("int8_weight_only", "int8", "fp8"):
                yield _bench(precision, num_rows, num_columns, depth)


def pack_and_call(kernels: Kernels, inputs: Inputs) -> tuple[Tensor, ...]:
    """Pack once per backend, since only the product is timed, and call."""
    packed = f"packed by {kernels.backend}"
    x = inputs["x"]
    if packed not in inputs:
        inputs[packed] = kernels.pack_linear(
            inputs["weight"], inputs["bias"], inputs["precision"], x.dtype
        )
    return (inputs[packed](x),)


def _check(precision: str, shape: tuple[int, int, int], dtype: torch.dtype, has_bias: bool) -> Case:
    num_rows, num_columns, depth = shape

    def make(device: torch.device) -> Inputs:
        x = strided(torch.randn(num_rows, depth, device=device).to(dtype))
        if num_rows > 2:
            x[1] = 0  # a row of zeros has the least scale, not none
        weight = (torch.randn(num_columns, depth, device=device) / depth**0.5).to(dtype)
        bias = torch.randn(num_columns, device=device).to(dtype) if has_bias else None
        return {"x": x, "weight": weight, "bias": bias, "precision": precision}

    # Hopper's tensor cores add fp8 products in about 14 bits; the interpreter is exact
    atol = max(ATOL[dtype], 1e-3) if precision == "fp8" else ATOL[dtype]
    name = f"{precision}-{SHORT[dtype]}-m{num_rows}-n{num_columns}-k{depth}"
    return Case("pack_linear", name + ("-bias" if has_bias else ""), dtype, make, pack_and_call,
                atol, RTOL[dtype], needs_fp8=precision == "fp8")  # fmt: skip


def strided(x: Tensor) -> Tensor:
    """Return x as columns of a wider tensor."""
    wide = torch.full((x.shape[0], x.shape[1] + 16), torch.nan, dtype=x.dtype, device=x.device)
    view = wide[:, 8 : 8 + x.shape[1]]
    view.copy_(x)
    return view


def _exact_sums() -> Case:
    """With a value of 127 in each group every scale is 1, so the output is the int32 sum."""

    def make(device: torch.device) -> Inputs:
        weight = torch.randint(-127, 128, (70, 150), device=device).float()
        x = torch.randint(-127, 128, (9, 150), device=device).float()
        weight[:, 0] = 127.0
        x[:, ::64] = -127.0
        return {"x": x, "weight": weight, "bias": None, "precision": "int8"}

    # 150 * 127^2 < 2^24: fp32 holds every sum
    return Case("pack_linear", "int8-exact_sums", torch.float32, make, pack_and_call, 0.0)


def _bench(precision: str, num_rows: int, num_columns: int, depth: int) -> Case:
    dtype = torch.bfloat16

    def make(device: torch.device) -> Inputs:
        x = torch.randn(num_rows, depth, device=device, dtype=dtype)
        weight = torch.randn(num_columns, depth, device=device, dtype=dtype) / depth**0.5
        return {"x": x, "weight": weight, "bias": None, "precision": precision}

    weight_bytes = num_columns * (depth + 4)
    cost = Cost(
        weight_bytes + 2 * num_rows * (depth + num_columns), 2 * num_rows * num_columns * depth
    )
    # bf16 keeps 8 bits of outputs of about 1
    return Case("pack_linear", f"{precision}-m{num_rows}-n{num_columns}-k{depth}", dtype, make,
                pack_and_call, 2e-2, 2**-7, precision == "fp8", cost, _torch_linear)  # fmt: skip


def _torch_linear(inputs: Inputs) -> Tensor:
    return F.linear(inputs["x"], inputs["weight"])
