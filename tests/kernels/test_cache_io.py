"""Cache writes against the reference: every dtype, skipped slots, strided inputs."""

import pytest
import torch
from torch import Tensor

from dstune.kernels.cache import allocate_kv_layer, allocate_latent_layer
from dstune.kernels.select import Kernels

DTYPES = [torch.float32, torch.bfloat16]
CACHE_DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int8]
SLOTS = torch.tensor([5, -1, 23, 0, 17, -1])


def _same(ours: Tensor | None, theirs: Tensor | None) -> None:
    if ours is not None and theirs is not None:
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("cache_dtype", CACHE_DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads,dim", [(3, 64), (1, 16), (2, 40)])
def test_write_kv(
    cpu: Kernels,
    reference: Kernels,
    heads: int,
    dim: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
) -> None:
    """Both backends leave the same bytes, and none where nothing was written."""
    fused = torch.randn(len(SLOTS), 2 * heads * dim + 5).to(dtype)
    fused[2] = 0  # a row of zeros: its scale is the smallest allowed
    k = fused[:, : heads * dim].unflatten(1, (heads, dim))
    v = fused[:, heads * dim : 2 * heads * dim].unflatten(1, (heads, dim))
    layers = []
    for backend in (cpu, reference):
        layer = allocate_kv_layer(3, 8, heads, dim, cache_dtype, "cpu")
        for tensor in (layer.k, layer.v, layer.k_scale, layer.v_scale):
            if tensor is not None:
                tensor.fill_(torch.nan if tensor.is_floating_point() else 99)
        backend.write_kv(k, v, layer, SLOTS)
        backend.write_kv(k[:0], v[:0], layer, SLOTS[:0])
        layers.append(layer)
    for name in ("k", "v", "k_scale", "v_scale"):
        _same(getattr(layers[0], name), getattr(layers[1], name))


@pytest.mark.parametrize("cache_dtype", CACHE_DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_latents_come_back_as_the_reference_stores_them(
    cpu: Kernels, reference: Kernels, dtype: torch.dtype, cache_dtype: torch.dtype
) -> None:
    latent, rope = torch.randn(6, 50).to(dtype), torch.randn(6, 1, 16).to(dtype)[:, 0]
    table, slots = torch.tensor([2, 0, -1], dtype=torch.int32), torch.tensor([8, 9, 10, 11, 0, 1])
    gathered = []
    for backend in (cpu, reference):
        layer = allocate_latent_layer(3, 4, 50, 16, cache_dtype, dtype, "cpu")
        backend.write_latent(latent, rope, layer, slots)
        gathered.append(backend.gather_latent(layer, table, 6, 4, torch.float32))
        assert gathered[-1][0].shape == (6, 50)
    for ours, theirs in zip(*gathered, strict=True):
        _same(ours, theirs)
    limit = 1 / 127 if cache_dtype == torch.int8 else 2**-7
    torch.testing.assert_close(gathered[0][0], latent.float(), rtol=limit, atol=4 * limit)


def test_int8_rounds_to_nearest_and_never_truncates(cpu: Kernels) -> None:
    values = torch.tensor([127.0, 0.6, -0.6, 1.4, -126.7, 0.5, 1.5, 2.5] * 2).view(1, 1, 16)
    layer = allocate_kv_layer(1, 8, 1, 16, torch.int8, "cpu")
    cpu.write_kv(values, values, layer, torch.tensor([3]))
    assert layer.k[0, 3, 0, :8].tolist() == [127, 1, -1, 1, -127, 0, 2, 2]
    assert layer.k_scale is not None and layer.k_scale[0, 3, 0] == 1
