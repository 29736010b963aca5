"""What proves and what times the rotary position embedding."""

from collections.abc import Iterator

import torch
from torch import Tensor

from dstune.kernels.precision import FLOAT_PRECISIONS
from dstune.kernels.select import Kernels
from dstune.kernels.workbench.case import Case, Cost, Inputs

NAMES = {dtype: name for name, dtype in FLOAT_PRECISIONS.items()}
FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
# Triton rounds every product and sum to fp32 as the reference does. A CPU fuses a product into the
# sum, which leaves out one rounding, so that a result below 8 may be its neighbour, and so may
# what a half type keeps of it.
ATOL = 2.0**-21
RTOL = {FP32: 0.0, FP16: 2.0**-10, BF16: 2.0**-7}


def checks() -> Iterator[Case]:
    """Both layouts of pairs, dimensions that are no power of two, views into wider rows."""
    for interleaved in (False, True):
        yield _apply_rope(4, 3, 64, FP32, interleaved)
        yield _apply_rope(1, 1, 34, FP32, interleaved)
        yield _apply_rope(3, 5, 40, FP16, interleaved, before=24)
        yield _apply_rope(2, 16, 576, FP32, interleaved)
        yield _apply_rope(0, 4, 64, FP32, interleaved)
        yield _apply_rope(3, 1, 64, FP16, interleaved, before=512)
        yield _apply_rope(4, 70, 64, FP16, interleaved)
        yield _apply_rope(3, 2, 128, BF16, interleaved)


def benches() -> Iterator[Case]:
    """Llama-3-8B's queries, and DeepSeek-V2-Lite's, whose rotary part is a third of each head."""
    for num_tokens in (32, 4096):
        yield _apply_rope(num_tokens, 32, 128, BF16, False)
        yield _apply_rope(num_tokens, 16, 64, BF16, True, before=128)


def _apply_rope(
    num_tokens: int,
    num_heads: int,
    dim: int,
    dtype: torch.dtype,
    interleaved: bool,
    before: int = 0,  # elements of a head that are not rotated
) -> Case:
    max_len = max(32, num_tokens)

    def make(device: torch.device) -> Inputs:
        angles = torch.rand(max_len, dim // 2, device=device) * 6.3
        heads = torch.randn(num_tokens, num_heads, before + dim, device=device).to(dtype)
        positions = torch.randint(0, max_len, (num_tokens,), device=device)
        return {"heads": heads, "positions": positions, "cos": angles.cos(), "sin": angles.sin()}

    def call(kernels: Kernels, inputs: Inputs) -> tuple[Tensor, ...]:
        heads = inputs["heads"]
        rotary = heads[:, :, before:]
        kernels.apply_rope(rotary, inputs["positions"], inputs["cos"], inputs["sin"], interleaved)
        return (heads,)

    values = num_tokens * num_heads * dim
    cost = Cost(2 * values * dtype.itemsize + num_tokens * (8 + 4 * dim), 3 * values)
    layout = "interleaved" if interleaved else "halves"
    name = f"{NAMES[dtype]}-{layout}-{num_tokens}x{num_heads}x{before}_{dim}"
    return Case("apply_rope", name, dtype, make, call, ATOL, RTOL[dtype], cost=cost)
