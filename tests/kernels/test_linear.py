"""The native linear layers against the reference, and what batch invariance promises."""

import pytest
import torch

from dstune.errors import UsageError
from dstune.kernels.select import Kernels

DTYPES = [torch.float32, torch.bfloat16]
# (N, K): SmolLM2's, the tiny model's, and none a multiple of the panel of 32 columns
SHAPES = [(576, 192), (80, 50), (33, 7), (1, 1), (264, 256), (32, 65)]
# Relative to the largest output: fp32 rounding over K <= 256 terms; bf16 has 8 bits.
TOLERANCE = {"fp32": 2e-6, "int8": 2e-6, "bf16": 2**-7}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s[0]}x{s[1]}")
def test_matches_the_reference(
    cpu: Kernels,
    reference: Kernels,
    shape: tuple[int, int],
    dtype: torch.dtype,
    precision: str,
) -> None:
    weight, bias = torch.randn(shape), torch.randn(shape[0])
    ours = cpu.pack_linear(weight, bias, precision, dtype)
    theirs = reference.pack_linear(weight, bias, precision, dtype)
    assert (ours.in_features, ours.out_features) == (shape[1], shape[0])
    for num_rows in (0, 1, 2, 5, 12, 13, 40, 150):
        x = torch.randn(num_rows, shape[1]).to(dtype)
        expected = theirs(x).float()
        tolerance = 2**-7 if dtype == torch.bfloat16 else TOLERANCE[precision]
        limit = tolerance * float(expected.abs().max()) if num_rows else 0.0
        torch.testing.assert_close(ours(x).float(), expected, rtol=0, atol=limit)


@pytest.mark.parametrize("depth", [4, 127, 576])
def test_int8_sums_are_exact(cpu: Kernels, depth: int) -> None:
    """With a value of 127 in each group the scales are 1, so the output is the int sum."""
    weight = torch.randint(-127, 128, (70, depth)).float()
    x = torch.randint(-127, 128, (9, depth)).float()
    weight[:, 0], x[:, ::64], x[:, -1] = 127, -127, -127
    y = cpu.pack_linear(weight, None, "int8", torch.float32)(x)
    assert torch.equal(y.double(), x.double() @ weight.double().T)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_a_row_does_not_depend_on_the_others(cpu: Kernels, precision: str) -> None:
    linear = cpu.pack_linear(torch.randn(100, 77), torch.randn(100), precision, torch.bfloat16)
    x = torch.randn(61, 77).to(torch.bfloat16)
    alone = torch.cat([linear(row[None]) for row in x])
    assert torch.equal(linear(x), alone)


def test_rows_may_be_strided(cpu: Kernels) -> None:
    linear = cpu.pack_linear(torch.randn(40, 20), None, "fp32", torch.float32)
    wide = torch.randn(6, 50)
    assert torch.equal(linear(wide[:, 10:30]), linear(wide[:, 10:30].contiguous()))


def test_a_row_of_zeros_is_zero_in_int8(cpu: Kernels) -> None:
    linear = cpu.pack_linear(torch.randn(40, 20), None, "int8", torch.float32)
    assert torch.equal(linear(torch.zeros(2, 20)), torch.zeros(2, 40))


def test_what_the_backend_lacks_is_an_error_that_names_the_way_out(cpu: Kernels) -> None:
    with pytest.raises(UsageError, match="backend: reference"):
        cpu.pack_linear(torch.randn(4, 4), None, "fp16", torch.float32)
    linear = cpu.pack_linear(torch.randn(4, 4), None, "fp32", torch.float32)
    with pytest.raises(UsageError, match="backend: reference"):
        linear(torch.randn(2, 4).half())


def test_packed_bytes_follow_the_precision(cpu: Kernels) -> None:
    weight = torch.randn(64, 64)
    sizes = {
        precision: cpu.pack_linear(weight, None, precision, torch.float32).num_bytes
        for precision in ("fp32", "bf16", "int8")
    }
    assert sizes["fp32"] == 2 * sizes["bf16"] == 4 * 64 * 64
    assert 64 * 64 <= sizes["int8"] < sizes["bf16"]
