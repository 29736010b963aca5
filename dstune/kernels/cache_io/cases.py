"""What proves and what times writes to the KV cache."""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from dstune.kernels.batch import AttentionBatch, Rotation
from dstune.kernels.cache import SCALED, KvLayer, LatentLayer
from dstune.kernels.cache_io.reference import LARGEST, load
from dstune.kernels.norm.cases import ATOL as NORM_ATOL
from dstune.kernels.norm.cases import RTOL as NORM_RTOL
from dstune.kernels.precision import KV_DTYPES
from dstune.kernels.rope.cases import ATOL as ROPE_ATOL
from dstune.kernels.rope.cases import RTOL as ROPE_RTOL
from dstune.kernels.select import Kernels
from dstune.kernels.workbench.case import Case, Cost, Inputs

NAMES = {dtype: name for name, dtype in KV_DTYPES.items()}
FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
INT8, FP8 = torch.int8, torch.float8_e4m3fn

# Plain writes store what the reference stores, to the last bit: the values are such that scales
# are powers of two, however a device divides, and the numbers to round are exact, ties included.
EXACT = 0.0
# Rotated values are equal too, but their scales are not round: torch on a GPU divides by 127 as
# it multiplies by 1/127, so that a scale may be off by a unit and a value next to halfway may
# fall to the other side. One step of a row whose largest is 3 * sqrt(2); e4m3's is 1/8 of a value.
ROTATED_STEP = {INT8: 4.25 / 127, FP8: 1e-2}
# A normalised latent is below 7 here; 16-bit values that fall to the neighbour come on top.
LATENT_STEP = {INT8: 7 / 127 + 7 * 2.0**-10, FP8: 2e-2}
FP8_RTOL = 0.13
BLOCK_SIZE = 16
# Slots of the checks' tokens, padding among them; the cache has four blocks.
SLOTS = (5, -1, 23, 0, 17, -1, 63, 40)
NUM_BLOCKS = 4
HUGE = 2**31  # elements: an offset that 32 bits do not hold


@dataclass(frozen=True)
class _Sizes:
    num_heads: int  # of queries
    num_kv_heads: int
    dim: int

    @property
    def name(self) -> str:
        return f"h{self.num_heads}_{self.num_kv_heads}_{self.dim}"


LLAMA = _Sizes(32, 8, 128)
ODD = _Sizes(3, 1, 40)
TINY = _Sizes(4, 2, 34)


def checks() -> Iterator[Case]:
    """Every cache type, odd sizes, one token and none, strided views, skipped and huge slots."""
    for cache_dtype in (FP32, FP16, INT8, FP8):
        yield _write_kv(6, 3, 17, FP32, cache_dtype)
        yield _write_latent(6, 40, 16, FP32, cache_dtype)
        yield _rotate_and_write_kv(8, ODD, FP32, cache_dtype, interleaved=False)
        yield _rotate_and_write_kv(7, TINY, FP32, cache_dtype, interleaved=True)
        yield _rotate_and_write_latent(8, 3, (17, 34), FP32, cache_dtype, interleaved=True)
    for cache_dtype in (FP16, INT8):
        yield _write_kv(8, 20, 128, FP16, cache_dtype)
        yield _write_latent(3, 576, 64, FP16, cache_dtype)
        yield _rotate_and_write_kv(2, LLAMA, FP16, cache_dtype, interleaved=False)
        yield _rotate_and_write_kv(3, LLAMA, FP16, cache_dtype, interleaved=True)
        yield _rotate_and_write_latent(2, 16, (512, 64), FP16, cache_dtype, interleaved=True)
        yield _rotate_and_write_latent(2, 35, (64, 64), FP16, cache_dtype, interleaved=False)
    for num_tokens in (0, 1):
        yield _write_kv(num_tokens, 2, 64, FP32, INT8)
        yield _write_latent(num_tokens, 64, 16, FP32, INT8)
        yield _rotate_and_write_kv(num_tokens, ODD, FP16, FP16, interleaved=False)
        yield _rotate_and_write_latent(num_tokens, 2, (32, 16), FP16, FP16, interleaved=True)
    for cache_dtype in (BF16, INT8, FP8):
        yield _rotate_and_write_kv(4, LLAMA, BF16, cache_dtype, interleaved=False)
        yield _rotate_and_write_latent(4, 16, (512, 64), BF16, cache_dtype, interleaved=True)
    yield _write_kv(4, 2, 64, FP16, INT8, is_huge=True)
    yield _write_latent(4, 512, 16, FP16, INT8, is_huge=True)
    yield _rotate_and_write_kv(4, _Sizes(4, 2, 64), FP16, INT8, interleaved=False, is_huge=True)
    yield _rotate_and_write_latent(4, 2, (512, 16), FP16, INT8, interleaved=True, is_huge=True)


def benches() -> Iterator[Case]:
    """Llama-3-8B, and DeepSeek-V2-Lite and V3, a decode step and a prefill."""
    for num_tokens in (32, 4096):
        for cache_dtype in (BF16, INT8, FP8):
            yield _rotate_and_write_kv(num_tokens, LLAMA, BF16, cache_dtype, interleaved=False)
            yield _rotate_and_write_latent(
                num_tokens, 16, (512, 64), BF16, cache_dtype, interleaved=True
            )
    yield _rotate_and_write_latent(32, 128, (512, 64), BF16, BF16, interleaved=True)
    yield _write_kv(4096, 8, 128, BF16, INT8)


def _slots(num_tokens: int, row: int, is_huge: bool) -> tuple[list[int], int]:
    """Return slots and blocks for tokens whose cache rows have `row` elements."""
    if is_huge:
        beyond = HUGE // row
        return [beyond + 3, 5, -1, beyond + 127][:num_tokens], beyond // BLOCK_SIZE + 9
    if num_tokens <= len(SLOTS):
        return list(SLOTS[:num_tokens]), NUM_BLOCKS
    return [5 * token % num_tokens for token in range(num_tokens)], -(-num_tokens // BLOCK_SIZE)


def _storage(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, is_huge: bool
) -> Tensor:
    """Return memory for a cache, full of NaN; a huge one on a CPU is zero and sparse.

    Only the pages that are written are ever there. A GPU has no such memory: it allocates.
    """
    if is_huge and device.type == "cpu":
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        pages = mmap.mmap(-1, prod(shape) * dtype.itemsize, flags=flags)
        return torch.frombuffer(pages, dtype=dtype).view(shape)
    if is_huge:
        return torch.zeros(shape, dtype=dtype, device=device)
    if dtype == FP8:
        return torch.full(shape, 127, dtype=INT8, device=device).view(FP8)  # e4m3's NaN
    return torch.full(shape, torch.nan if dtype.is_floating_point else 99, device=device).to(dtype)


def _scales(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, is_huge: bool
) -> Tensor | None:
    return _storage(shape, FP32, device, is_huge) if dtype in SCALED else None


def _seen(cache: Tensor, scale: Tensor | None, slots: Tensor | None) -> tuple[Tensor, ...]:
    """Return cached values as fp32, and scales, at slots or everywhere."""
    if slots is None:
        slots = torch.arange(cache.shape[0] * cache.shape[1], device=cache.device)
    values = load(cache, scale, slots)
    return (values,) if scale is None else (values, scale.flatten(0, 1)[slots])


def _to_be_stored(
    shape: tuple[int, ...], dtype: torch.dtype, cache_dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return rows whose scale is a power of two and whose quotients need rounding; one is zero."""
    if cache_dtype not in SCALED:
        return torch.randn(shape, device=device).to(dtype)
    largest = int(LARGEST[cache_dtype])
    x = torch.randint(-largest, largest + 1, shape, device=device).float()
    if cache_dtype == INT8:
        x = torch.randint(-2 * largest, 2 * largest + 1, shape, device=device) / 2
    else:  # down to e4m3's subnormal numbers and below
        x = x * torch.exp2(-torch.randint(0, 13, shape, device=device).float())
    x[..., -1] = -largest
    x = x * torch.exp2(torch.randint(-3, 3, (*shape[:-1], 1), device=device).float())
    x[2:3] = 0
    return x.to(dtype)


def _batch(num_tokens: int, slots: list[int], max_len: int, device: torch.device) -> AttentionBatch:
    """Return a batch of which only positions and slots matter; padding stands at position 0."""
    positions = [0 if slot < 0 else 7 * token % max_len for token, slot in enumerate(slots)]
    return AttentionBatch(
        positions=torch.tensor(positions, dtype=torch.int64).to(device),
        slot_mapping=torch.tensor(slots, dtype=torch.int64).to(device),
        query_start=torch.arange(num_tokens + 1, dtype=torch.int32).to(device),
        kv_lens=torch.ones(num_tokens, dtype=torch.int32, device=device),
        block_tables=torch.zeros(num_tokens, 1, dtype=torch.int32, device=device),
        block_size=BLOCK_SIZE,
        host_query_lens=(1,) * num_tokens,
        host_kv_lens=(1,) * num_tokens,
    )


def _rotation(dim: int, max_len: int, interleaved: bool, device: torch.device) -> Rotation:
    angles = torch.rand(max_len, dim // 2, device=device) * 6.3
    return Rotation(angles.cos(), angles.sin(), interleaved)


def _bounded(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.randn(shape, device=device).clamp(-3, 3).to(dtype)


def _kv_layer(
    num_blocks: int, heads: int, dim: int, dtype: torch.dtype, device: torch.device, is_huge: bool
) -> KvLayer:
    rows = (num_blocks, BLOCK_SIZE, heads)
    k, v = (_storage((*rows, dim), dtype, device, is_huge) for _ in range(2))
    return KvLayer(k, v, *(_scales(rows, dtype, device, is_huge) for _ in range(2)))


def _latent_layer(
    num_blocks: int,
    dims: tuple[int, int],
    dtypes: tuple[torch.dtype, torch.dtype],
    device: torch.device,
    is_huge: bool,
) -> LatentLayer:
    rows = (num_blocks, BLOCK_SIZE)
    latent = _storage((*rows, dims[0]), dtypes[0], device, is_huge)
    rope = _storage((*rows, dims[1]), dtypes[1], device, is_huge)
    return LatentLayer(latent, rope, _scales(rows, dtypes[0], device, is_huge))


def _seen_kv(layer: KvLayer, slots: Tensor | None) -> tuple[Tensor, ...]:
    return *_seen(layer.k, layer.k_scale, slots), *_seen(layer.v, layer.v_scale, slots)


def _seen_latent(layer: LatentLayer, slots: Tensor | None) -> tuple[Tensor, ...]:
    return *_seen(layer.latent, layer.scale, slots), *_seen(layer.rope, None, slots)


def _watched(slots: list[int], is_huge: bool, device: torch.device) -> Tensor | None:
    """Return the slots of a huge cache that are looked at: those written and their neighbours."""
    if not is_huge:
        return None
    near = sorted({max(0, slot + step) for slot in slots for step in (-1, 0, 1)})
    return torch.tensor(near, dtype=torch.int64).to(device)


def _name(dtype: torch.dtype, cache_dtype: torch.dtype, rest: str, is_huge: bool = False) -> str:
    huge = "-beyond_2_31" if is_huge else ""
    return f"{NAMES[dtype]}-kv_{NAMES[cache_dtype]}-{rest}{huge}"


def _row_bytes(num_rows: int, dim: int, cache_dtype: torch.dtype) -> int:
    return num_rows * (dim * cache_dtype.itemsize + (4 if cache_dtype in SCALED else 0))


def _write_kv(
    num_tokens: int,
    heads: int,
    dim: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    is_huge: bool = False,
) -> Case:
    slots, num_blocks = _slots(num_tokens, heads * dim, is_huge)

    def make(device: torch.device) -> Inputs:
        # Keys and values are views into rows that have something in front.
        fused = _to_be_stored((num_tokens, 2 * heads + 1, dim), dtype, cache_dtype, device)
        return {
            "k": fused[:, 1 : heads + 1],
            "v": fused[:, heads + 1 :],
            "layer": _kv_layer(num_blocks, heads, dim, cache_dtype, device, is_huge),
            "slots": torch.tensor(slots, dtype=torch.int64).to(device),
            "watched": _watched(slots, is_huge, device),
        }

    def call(kernels: Kernels, inputs: Inputs) -> tuple[Tensor, ...]:
        kernels.write_kv(inputs["k"], inputs["v"], inputs["layer"], inputs["slots"])
        return _seen_kv(inputs["layer"], inputs["watched"])

    num_rows = 2 * num_tokens * heads
    moved = num_rows * dim * dtype.itemsize + _row_bytes(num_rows, dim, cache_dtype)
    cost = Cost(moved + 8 * num_tokens, 3 * num_rows * dim)
    name = _name(dtype, cache_dtype, f"{num_tokens}x{heads}x{dim}", is_huge)
    return Case("write_kv", name, dtype, make, call, EXACT, 0.0, cache_dtype == FP8, cost)


def _write_latent(
    num_tokens: int,
    rank: int,
    rope_dim: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    is_huge: bool = False,
) -> Case:
    slots, num_blocks = _slots(num_tokens, rank, is_huge)

    def make(device: torch.device) -> Inputs:
        latent = _to_be_stored((num_tokens, rank), dtype, cache_dtype, device)
        both = torch.cat([latent, torch.randn(num_tokens, rope_dim, device=device).to(dtype)], 1)
        layer = _latent_layer(num_blocks, (rank, rope_dim), (cache_dtype, dtype), device, is_huge)
        return {
            "latent": both[:, :rank],
            "rope": both[:, rank:],
            "layer": layer,
            "slots": torch.tensor(slots, dtype=torch.int64).to(device),
            "watched": _watched(slots, is_huge, device),
        }

    def call(kernels: Kernels, inputs: Inputs) -> tuple[Tensor, ...]:
        kernels.write_latent(inputs["latent"], inputs["rope"], inputs["layer"], inputs["slots"])
        return _seen_latent(inputs["layer"], inputs["watched"])

    name = _name(dtype, cache_dtype, f"{num_tokens}x{rank}_{rope_dim}", is_huge)
    return Case("write_latent", name, dtype, make, call, EXACT, 0.0, cache_dtype == FP8)


def _rotate_and_write_kv(
    num_tokens: int,
    sizes: _Sizes,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    interleaved: bool,
    is_huge: bool = False,
) -> Case:
    heads, kv_heads, dim = sizes.num_heads, sizes.num_kv_heads, sizes.dim
    slots, num_blocks = _slots(num_tokens, kv_heads * dim, is_huge)
    max_len = max(32, num_tokens)

    def make(device: torch.device) -> Inputs:
        return {
            "qkv": _bounded((num_tokens, heads + 2 * kv_heads, dim), dtype, device),
            "rotation": _rotation(dim, max_len, interleaved, device),
            "layer": _kv_layer(num_blocks, kv_heads, dim, cache_dtype, device, is_huge),
            "batch": _batch(num_tokens, slots, max_len, device),
            "watched": _watched(slots, is_huge, device),
        }

    def call(kernels: Kernels, inputs: Inputs) -> tuple[Tensor, ...]:
        qkv, layer = inputs["qkv"], inputs["layer"]
        kernels.rotate_and_write_kv(qkv, heads, inputs["rotation"], layer, inputs["batch"])
        return qkv[:, :heads], *_seen_kv(layer, inputs["watched"])

    num_read = num_tokens * (heads + 2 * kv_heads) * dim
    num_rotated = num_tokens * heads * dim
    moved = (num_read + num_rotated) * dtype.itemsize + num_tokens * (16 + 4 * dim)
    moved += _row_bytes(2 * num_tokens * kv_heads, dim, cache_dtype)
    layout = "interleaved" if interleaved else "halves"
    name = _name(dtype, cache_dtype, f"{layout}-{num_tokens}x{sizes.name}", is_huge)
    return Case(
        "rotate_and_write_kv", name, dtype, make, call, ROTATED_STEP.get(cache_dtype, ROPE_ATOL),
        FP8_RTOL if cache_dtype == FP8 else ROPE_RTOL[dtype], cache_dtype == FP8,
        Cost(moved, 3 * num_read),
    )  # fmt: skip


def _rotate_and_write_latent(
    num_tokens: int,
    heads: int,
    dims: tuple[int, int],
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    interleaved: bool,
    is_huge: bool = False,
) -> Case:
    rank, rope_dim = dims
    nope = 2 * rope_dim
    slots, num_blocks = _slots(num_tokens, rank, is_huge)
    max_len = max(32, num_tokens)

    def make(device: torch.device) -> Inputs:
        # As the model passes them: queries and latents are parts of one projection's rows.
        split = heads * (nope + rope_dim)
        down = _bounded((num_tokens, split + rank + rope_dim), dtype, device)
        layer = _latent_layer(num_blocks, dims, (cache_dtype, dtype), device, is_huge)
        return {
            "query": down[:, :split].view(num_tokens, heads, nope + rope_dim),
            "latent_and_key": down[:, split:],
            "norm": ((torch.rand(rank, device=device) + 0.5).to(dtype), 1e-6),
            "rotation": _rotation(rope_dim, max_len, interleaved, device),
            "layer": layer,
            "batch": _batch(num_tokens, slots, max_len, device),
            "watched": _watched(slots, is_huge, device),
        }

    def call(kernels: Kernels, inputs: Inputs) -> tuple[Tensor, ...]:
        query, layer = inputs["query"], inputs["layer"]
        kernels.rotate_and_write_latent(
            query, inputs["latent_and_key"], inputs["norm"], inputs["rotation"], layer,
            inputs["batch"],
        )  # fmt: skip
        return query, *_seen_latent(layer, inputs["watched"])

    num_rotary = num_tokens * heads * rope_dim
    moved = (2 * num_rotary + num_tokens * (rank + 2 * rope_dim)) * dtype.itemsize
    moved += _row_bytes(num_tokens, rank, cache_dtype) + num_tokens * (16 + 4 * rope_dim)
    layout = "interleaved" if interleaved else "halves"
    rest = f"{layout}-{num_tokens}xh{heads}_{rank}_{rope_dim}"
    name = _name(dtype, cache_dtype, rest, is_huge)
    rtol = FP8_RTOL if cache_dtype == FP8 else NORM_RTOL[dtype]
    return Case(
        "rotate_and_write_latent", name, dtype, make, call,
        LATENT_STEP.get(cache_dtype, NORM_ATOL), rtol, cache_dtype == FP8,
        Cost(moved, 3 * num_rotary + 6 * num_tokens * rank),
    )  # fmt: skip
