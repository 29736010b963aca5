"""Cache writes against the reference: every dtype, skipped slots, strided inputs."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dstune.errors import UsageError
from dstune.kernels.batch import AttentionBatch, Rotation
from dstune.kernels.cache import KvLayer, LatentLayer, allocate_kv_layer, allocate_latent_layer
from dstune.kernels.select import Kernels

DTYPES = [torch.float32, torch.bfloat16]
CACHE_DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int8]
SLOTS = torch.tensor([5, -1, 23, 0, 17, -1])


def _poison(layer: KvLayer | LatentLayer) -> None:
    for tensor in vars(layer).values():
        if tensor is not None:
            tensor.fill_(torch.nan if tensor.is_floating_point() else 99)


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
        _poison(layer)
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


# Ours against the separate operations of the cpu backend: the same arithmetic, so the same bytes.


def _batch(slots: Tensor) -> AttentionBatch:
    """A batch of which only positions and slots matter; padding stands at position 0."""
    positions = torch.randint(0, 40, slots.shape).where(slots >= 0, torch.tensor(0))
    empty = torch.zeros(0, dtype=torch.int32)
    return AttentionBatch(positions, slots, empty, empty, empty, 8, (), ())


def _rotation(dim: int, interleaved: bool) -> Rotation:
    angles = torch.rand(40, dim // 2) * 6.3
    return Rotation(angles.cos(), angles.sin(), interleaved)


def _rotate(backend: Kernels, x: Tensor, rotation: Rotation, batch: AttentionBatch) -> None:
    backend.apply_rope(x, batch.positions, rotation.cos, rotation.sin, rotation.interleaved)


def _assert_same_layers(ours: KvLayer | LatentLayer, theirs: KvLayer | LatentLayer) -> None:
    for name, tensor in vars(ours).items():
        _same(tensor, getattr(theirs, name))


# 600 tokens are enough for a parallel region.
@pytest.mark.parametrize("slots", [SLOTS, SLOTS[:0], torch.arange(600) - 1], ids=len)
@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])
@pytest.mark.parametrize("cache_dtype", CACHE_DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads,kv_heads,dim", [(4, 2, 64), (3, 1, 40)])
def test_rotate_and_write_kv_is_its_parts(
    cpu: Kernels,
    heads: int,
    kv_heads: int,
    dim: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    interleaved: bool,
    slots: Tensor,
) -> None:
    width = (heads + 2 * kv_heads) * dim
    fused = torch.full((len(slots), width + 5), torch.nan).to(dtype)
    fused[:, 3 : 3 + width] = torch.randn(len(slots), width)
    batch, rotation = _batch(slots), _rotation(dim, interleaved)
    num_blocks, rotated = 1 + len(slots) // 8 + 2, heads + kv_heads
    layers, projections = [], []
    for is_fused in (True, False):
        layers.append(allocate_kv_layer(num_blocks, 8, kv_heads, dim, cache_dtype, "cpu"))
        _poison(layers[-1])
        projections.append(fused.clone())
        qkv = projections[-1][:, 3 : 3 + width].unflatten(1, (-1, dim))
        if is_fused:
            cpu.rotate_and_write_kv(qkv, heads, rotation, layers[-1], batch)
        else:
            _rotate(cpu, qkv[:, :rotated], rotation, batch)
            cpu.write_kv(qkv[:, heads:rotated], qkv[:, rotated:], layers[-1], slots)
    _assert_same_layers(*layers)
    ours, theirs = (one[:, : 3 + heads * dim] for one in projections)
    _same(ours, theirs)
    _same(projections[0][:, 3 + width :], fused[:, 3 + width :])


@pytest.mark.parametrize("slots", [SLOTS, SLOTS[:0], torch.arange(600) - 1], ids=len)
@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])
@pytest.mark.parametrize("cache_dtype", CACHE_DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rank,rope_dim", [(160, 32), (50, 24)])
def test_rotate_and_write_latent_is_its_parts(
    cpu: Kernels,
    rank: int,
    rope_dim: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    interleaved: bool,
    slots: Tensor,
) -> None:
    heads, nope = 3, 17
    width = heads * (nope + rope_dim)
    fused = torch.randn(len(slots), width + rank + rope_dim).to(dtype)
    norm = (torch.randn(rank), 1e-6)  # fp32 beside bf16 activations: taken in their dtype
    batch, rotation = _batch(slots), _rotation(rope_dim, interleaved)
    num_blocks = 1 + len(slots) // 8 + 2
    layers, queries = [], []
    for is_fused in (True, False):
        layer = allocate_latent_layer(num_blocks, 8, rank, rope_dim, cache_dtype, dtype, "cpu")
        layers.append(layer)
        _poison(layer)
        projection = fused.clone()
        query = projection[:, :width].unflatten(1, (heads, -1))
        queries.append(query)
        latents = projection[:, width:]
        if is_fused:
            cpu.rotate_and_write_latent(query, latents, norm, rotation, layer, batch)
        else:
            key = latents[:, rank:]
            _rotate(cpu, query[:, :, nope:], rotation, batch)
            _rotate(cpu, key.unsqueeze(1), rotation, batch)
            cpu.write_latent(cpu.rms_norm(latents[:, :rank], *norm), key, layer, slots)
    _assert_same_layers(*layers)
    _same(*queries)


def _run_kv(cpu: Kernels, qkv: Tensor) -> None:
    layer = allocate_kv_layer(3, 8, 1, 16, torch.float32, "cpu")
    cpu.rotate_and_write_kv(qkv, 2, _rotation(16, False), layer, _batch(SLOTS))


def _run_latent(cpu: Kernels, query: Tensor, latents: Tensor) -> None:
    layer = allocate_latent_layer(3, 8, 16, 8, torch.float32, torch.float32, "cpu")
    norm = (torch.ones(16), 1e-6)
    cpu.rotate_and_write_latent(query, latents, norm, _rotation(8, True), layer, _batch(SLOTS))


@pytest.mark.parametrize(
    "run,shapes", [(_run_kv, [(6, 4, 16)]), (_run_latent, [(6, 2, 12), (6, 24)])], ids=["kv", "mla"]
)
def test_rotating_writes_refuse_what_they_cannot_read(
    cpu: Kernels, run: Callable[..., None], shapes: list[tuple[int, ...]]
) -> None:
    good = [torch.randn(shape) for shape in shapes]
    run(cpu, *good)
    with pytest.raises(UsageError, match="float16 activations"):
        run(cpu, *(one.half() for one in good))
    for index, one in enumerate(good):
        scattered = torch.randn(*one.shape, 2)[..., 0]
        with pytest.raises(ValueError, match="contiguous last dimension"):
            run(cpu, *good[:index], scattered, *good[index + 1 :])
    with pytest.raises(ValueError, match=r"are not \d+ \+"):
        run(cpu, *good[:-1], good[-1][:, 1:])
    if len(good) > 1:
        with pytest.raises(ValueError, match="not alike"):
            run(cpu, good[0].bfloat16(), good[1])
