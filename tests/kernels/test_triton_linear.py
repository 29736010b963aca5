"""What the Triton linear layers promise beside the cases of `dstune kernels verify`."""

from itertools import product

import pytest
import torch

from dstune.errors import UsageError
from dstune.kernels.cache_io import reference as cache_io
from dstune.kernels.device import SM_80, SM_89, TARGETS, pretending
from dstune.kernels.linear import reference
from dstune.kernels.linear.reference import GROUP, MIN_SCALE
from dstune.kernels.linear.triton import choose_tile, pack_linear
from dstune.kernels.linear.triton_quantise import quantise_groups, quantise_rows

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="tensors of the CPU")


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("depth", [7, 64, 200, 1100])
def test_int8_activations_are_the_references_bits(dtype: torch.dtype, depth: int) -> None:
    x = torch.randn(5, depth).to(dtype)
    x[2] = 0
    padded = -(-depth // GROUP) * GROUP
    quantised, scales = quantise_groups(x, padded)
    assert quantised.shape == (5, padded) and scales.shape == (padded // GROUP, 5)
    for group in range(padded // GROUP):
        span = slice(group * GROUP, min((group + 1) * GROUP, depth))
        expected, scale = cache_io.quantise_rows(x[:, span], MIN_SCALE)
        assert torch.equal(quantised[:, span], expected)
        assert torch.equal(scales[group], scale)
    assert not quantised[:, depth:].any()


@interpreted
@pytest.mark.parametrize("depth", [7, 64, 1100])
def test_e4m3_activations_are_the_references_bits(depth: int) -> None:
    """Normal and subnormal numbers, and ties, since halves of steps are among the values."""
    x = torch.randn(6, depth) * torch.logspace(-4, 1, depth)
    x[1] = 0
    ties = torch.arange(depth) % 60 / 32  # every half step of [1, 2), beside the largest number
    x[2], x[2, 0] = ties, 448.0
    x[3], x[3, 0] = ties / 512, 448.0  # steps of subnormal numbers
    quantised, scales = quantise_rows(x, depth + 9)
    expected, scale = cache_io.quantise_rows(x, MIN_SCALE, torch.float8_e4m3fn)
    assert torch.equal(scales, scale)
    assert torch.equal(quantised[:, :depth].float(), expected.float())
    assert not quantised[:, depth:].float().any()


@interpreted
@pytest.mark.parametrize("precision", ["int8", "int8_weight_only", "fp8"])
def test_a_row_does_not_depend_on_the_others_of_a_decode_step(precision: str) -> None:
    linear = pack_linear(torch.randn(40, 77), torch.randn(40), precision, torch.float32)
    x = torch.randn(9, 77)
    x[4] *= 1000
    assert torch.equal(linear(x), torch.cat([linear(row[None]) for row in x]))


@interpreted
def test_counts_and_shapes() -> None:
    weight = torch.randn(33, 50)
    for precision in ("int8", "int8_weight_only", "fp8"):
        linear = pack_linear(weight, None, precision, torch.float32)
        assert (linear.in_features, linear.out_features) == (50, 33)
        assert linear.precision == precision
        assert linear.num_bytes == 33 * (64 + 4)  # padded to a group, and a scale
        with pytest.raises(ValueError, match="51 features"):
            linear(torch.randn(2, 51))


def test_float_weights_are_torchs() -> None:
    packed = pack_linear(torch.randn(3, 4), None, "fp16", torch.float16)
    assert isinstance(packed, reference.FloatLinear)


def test_fp8_needs_a_device_that_has_it() -> None:
    weight = torch.randn(8, 8)
    with pretending(SM_80), pytest.raises(UsageError, match=r"compute capability 8\.9"):
        pack_linear(weight, None, "fp8", torch.bfloat16)
    with pretending(SM_89):
        pack_linear(weight, None, "fp8", torch.bfloat16)


def test_an_unknown_precision_is_an_error() -> None:
    with pytest.raises(UsageError, match="int4"):
        pack_linear(torch.randn(8, 8), None, "int4", torch.bfloat16)


@pytest.mark.parametrize("name", TARGETS)
def test_tiles_fit_every_gpu(name: str) -> None:
    gpu = TARGETS[name]
    precisions = [("int8", 1), ("fp8", 1), ("int8_weight_only", 2), ("int8_weight_only", 4)]
    rows, columns, depths = (1, 8, 16, 17, 33, 64, 65, 200, 5000), (64, 4096, 128256), (64, 14336)
    for (precision, x_bytes), m, n, k in product(precisions, rows, columns, depths):
        tile = choose_tile(m, n, k, precision, x_bytes, gpu)
        stage = (tile.block_m * x_bytes + tile.block_n) * tile.block_k * tile.unroll
        assert tile.num_stages >= 2
        assert tile.num_stages * stage <= gpu.shared_memory_bytes
        assert tile.block_m >= 16 and tile.block_n >= 16 and tile.block_k >= 32
        assert precision != "int8" or tile.block_k == GROUP


def test_few_columns_of_a_deep_weight_are_split() -> None:
    gpu = TARGETS["sm_90"]
    assert choose_tile(1, 2048, 10944, "int8_weight_only", 2, gpu).splits == 2
    assert choose_tile(1, 4096, 4096, "int8_weight_only", 2, gpu).splits == 1
    assert choose_tile(2048, 2048, 10944, "int8_weight_only", 2, gpu).splits == 1
