"""What proves and what times SwiGLU's gate."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import silu

from dstune.kernels.precision import FLOAT_PRECISIONS
from dstune.kernels.select import Kernels
from dstune.kernels.workbench.case import Case, Cost, Inputs

NAMES = {dtype: name for name, dtype in FLOAT_PRECISIONS.items()}
FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
# exp and the division make a few units of 2^-24; rounding to 16 bits may fall to the neighbour.
# exp of a large number is worse, relatively, where the result is next to nothing: ATOL.
RTOL = {FP32: 4e-6, FP16: 2.0**-10, BF16: 2.0**-7}
ATOL = 1e-6


def checks() -> Iterator[Case]:
    """Odd widths, one token and none, rows apart in memory, gates far from zero."""
    for num_tokens, width in ((3, 17), (1, 40), (0, 64), (5, 1408), (33, 64), (2, 2051)):
        yield _silu_and_mul(num_tokens, width, FP32)
        yield _silu_and_mul(num_tokens, width, FP16)
    yield _silu_and_mul(3, 576, FP16, pad=32)
    yield _silu_and_mul(3, 50, FP32, pad=7)
    yield _silu_and_mul(4, 200, FP32, spread=60.0)
    yield _silu_and_mul(3, 576, BF16)


def benches() -> Iterator[Case]:
    """DeepSeek-V2-Lite's dense layer and one of its experts, Llama-3-8B's."""
    for num_tokens in (32, 4096):
        for width in (10944, 1408, 14336):
            yield _silu_and_mul(num_tokens, width, BF16)


def _silu_and_mul(
    num_tokens: int, width: int, dtype: torch.dtype, pad: int = 0, spread: float = 2.0
) -> Case:
    def make(device: torch.device) -> Inputs:
        wide = torch.randn(num_tokens, 2 * width + pad, device=device) * spread
        return {"gate_up": wide.to(dtype)[:, pad:]}

    def call(kernels: Kernels, inputs: Inputs) -> tuple[Tensor, ...]:
        return (kernels.silu_and_mul(inputs["gate_up"]),)

    def torchs(inputs: Inputs) -> Tensor:
        gate, up = inputs["gate_up"].chunk(2, dim=-1)
        return silu(gate) * up

    values = num_tokens * width
    cost = Cost(3 * values * dtype.itemsize, 5 * values)
    name = f"{NAMES[dtype]}-{num_tokens}x{width}"
    name += f"-strided{pad}" if pad else ""
    name += f"-spread{spread:g}" if spread != 2.0 else ""
    return Case("silu_and_mul", name, dtype, make, call, ATOL, RTOL[dtype], False, cost, torchs)
