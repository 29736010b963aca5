"""What proves and what times attention of prompts: chunks over blocks, and dense keys for MLA."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from dstune.kernels.attention.cases_decode import largest_output, paged_check
from dstune.kernels.cache import SCALED
from dstune.kernels.precision import KV_DTYPES
from dstune.kernels.select import Kernels
from dstune.kernels.workbench.case import Case, Cost, Inputs
from dstune.kernels.workbench.sequences import Sequences

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
INT8, FP8 = torch.int8, torch.float8_e4m3fn
NAMES = {dtype: name for name, dtype in KV_DTYPES.items()}
# Outputs are weighted means of values of size 1, up to 4 where a query sees few keys. fp32: the
# order of sums, and exponentials of 2 ulp. fp16 and bf16: the reference computes in fp32, the
# kernel rounds weights and output, each by 2^-11 or 2^-8 of that. fp8 is only read here, which the
# interpreter does exactly: its values are those of fp16.
ATOL = {FP32: 2e-5, FP16: 4e-3, BF16: 3e-2}


Heads = tuple[int, int, int]
"""Query heads, KV heads, dimensions."""


@dataclass(frozen=True)
class _Dense:
    """Queries and keys of one sequence; `diagonal` as in the reference."""

    num_queries: int
    num_keys: int
    heads: tuple[int, int, int, int]  # query heads, kv heads, dimensions of keys and of values
    diagonal: int | None = None
    has_lse: bool = True

    @property
    def name(self) -> str:
        """Heads and lengths."""
        heads = "_".join(map(str, self.heads))
        diagonal = "" if self.diagonal is None else f"-diagonal_{self.diagonal}"
        lse = "-lse" * self.has_lse
        return f"h{heads}-{self.num_queries}of{self.num_keys}{diagonal}{lse}"


def checks() -> Iterator[Case]:
    """Yield small cases of every dtype, block size, head size and kind of batch."""
    chunk, some = Sequences((20,), (37,)), (4, 2, 64)
    for kv_dtype in (FP32, FP16, INT8, FP8):
        for dtype in (FP32, FP16):
            yield paged_check(chunk, some, dtype, kv_dtype)
    yield paged_check(chunk, some, BF16, BF16)
    yield paged_check(chunk, some, BF16, INT8)
    for sequences, heads in _paged_shapes():
        yield paged_check(sequences, heads, FP32, FP32)
    for size in (32, 64, 128):  # blocks larger than a tile: scales lie inside them
        for dtype in (FP32, FP16):
            yield paged_check(Sequences((9,), (140,), size), some, dtype, INT8)
    for heads in ((9, 3, 64), (8, 1, 40), (4, 4, 128)):
        yield paged_check(Sequences((30, 3), (45, 150)), heads, FP16, FP16)
        yield paged_check(Sequences((30, 3), (45, 40)), heads, FP16, INT8)
    far = 2**31 // (16 * 1 * 64) + 1  # the first block beyond 2^31 elements
    for dtype in (FP32, FP16):  # tiles of one block, and of several
        yield paged_check(Sequences((5,), (21,), first_block=far), (2, 1, 64), dtype, INT8)
    for dense in _dense_shapes():
        yield _dense_check(dense, FP32)
    for dense in (_Dense(70, 150, (2, 2, 192, 128)), _Dense(20, 33, (4, 1, 64, 64), -5)):
        yield _dense_check(dense, FP16)
        yield _dense_check(dense, BF16)


def _paged_shapes() -> Iterator[tuple[Sequences, Heads]]:
    some = (4, 2, 64)
    yield Sequences((2,), (2,)), some
    yield Sequences((16,), (16,)), some  # one whole block
    for size in (16, 32, 64, 128, 256):  # ends inside
        yield Sequences((9,), (140,), size), some
    yield Sequences((8,), (64,), 32), some  # ends with a block and with a tile
    yield Sequences((40, 17), (40, 90), num_padding=3), some
    # decodes, one of them a padded row, then chunks, an empty sequence and a row without a cache
    yield Sequences((1, 1, 5, 0, 18, 1, 1), (30, 0, 9, 7, 18, 0, 12), num_padding=2), some
    yield Sequences((0, 0), (5, 0), num_padding=1), some
    for heads in ((2, 2, 64), (6, 2, 40), (4, 1, 17), (8, 1, 128), (128, 8, 16), (3, 1, 96)):
        yield Sequences((7,), (35,)), heads
    yield Sequences((5,), (20,), 64), (128, 128, 16)


def _dense_shapes() -> Iterator[_Dense]:
    heads = (2, 2, 192, 128)
    yield _Dense(1, 1, heads)
    yield _Dense(1, 40, heads, has_lse=False)
    yield _Dense(20, 20, heads)
    yield _Dense(17, 70, heads, has_lse=False)
    yield _Dense(17, 70, (4, 4, 24, 20))
    yield _Dense(9, 33, (6, 2, 64, 64))
    yield _Dense(9, 33, (4, 4, 320, 256))
    yield _Dense(3, 40, (128, 128, 24, 16))
    yield _Dense(0, 5, heads)
    yield _Dense(5, 0, heads)
    yield _Dense(20, 30, heads, -7)  # the first 7 see nothing
    yield _Dense(20, 30, heads, -20)  # none sees anything
    yield _Dense(20, 30, heads, 0)
    yield _Dense(20, 30, heads, 29)  # all see everything
    yield _Dense(20, 30, (4, 2, 40, 40), 10**6)
    yield _Dense(20, 30, (4, 2, 40, 40), -(10**6))
    yield _Dense(20, 64, heads, 31)  # ends with a tile for the first query


def benches() -> Iterator[Case]:
    """Yield Llama-3-8B's prefill over blocks and DeepSeek-V2-Lite's over expanded keys."""
    llama = (32, 8, 128)
    for context in (0, 8192):
        for kv_dtype in (BF16, INT8, FP8):
            yield _paged_bench(Sequences((2048,), (2048 + context,)), llama, kv_dtype)
    yield _paged_bench(Sequences((512,) * 4, (1024,) * 4, 64), llama, BF16)
    yield _paged_bench(Sequences((8,) * 16, (2048,) * 16), llama, BF16)
    yield _paged_bench(Sequences((2048,), (2048,)), (9, 3, 64), BF16)
    for num_keys in (2048, 8192):
        yield _dense_bench(_Dense(2048, num_keys, (16, 16, 192, 128)))


def call_dense(kernels: Kernels, inputs: Inputs) -> tuple[Tensor, ...]:
    """Attend to dense keys; lse, where there is one, is written too."""
    lse = inputs["lse"]
    out = kernels.dense_attention(
        inputs["q"], inputs["k"], inputs["v"], inputs["scale"], inputs["diagonal"], lse
    )
    return (out,) if lse is None else (out, lse)


def _dense_check(shape: _Dense, dtype: torch.dtype) -> Case:
    def make(device: torch.device) -> Inputs:
        return _dense_inputs(shape, dtype, device)

    return Case("dense_attention", f"{NAMES[dtype]}-{shape.name}", dtype, make, call_dense,
                ATOL[dtype])  # fmt: skip


def _dense_inputs(shape: _Dense, dtype: torch.dtype, device: torch.device) -> Inputs:
    num_heads, num_kv_heads, key_dim, value_dim = shape.heads
    # as MLA's: values are a part of the expanded latents
    expanded = torch.randn(shape.num_keys, num_kv_heads, 2 * value_dim, device=device).to(dtype)
    size = (shape.num_queries, num_heads)
    return {
        "q": torch.randn(*size, key_dim, device=device).to(dtype),
        "k": torch.randn(shape.num_keys, num_kv_heads, key_dim, device=device).to(dtype),
        "v": expanded[..., value_dim:],
        "scale": key_dim**-0.5,
        "diagonal": shape.diagonal,
        "lse": torch.full(size, torch.nan, device=device) if shape.has_lse else None,
    }


def _num_pairs(num_queries: int, num_keys: int) -> int:
    """Return how many keys all queries at the end of a sequence see together."""
    return num_queries * (num_keys - num_queries) + num_queries * (num_queries + 1) // 2


def _paged_bench(sequences: Sequences, heads: Heads, kv_dtype: torch.dtype) -> Case:
    num_heads, num_kv_heads, dim = heads
    num_queries, num_keys = sum(sequences.query_lens), sum(sequences.kv_lens)
    pairs = sum(map(_num_pairs, sequences.query_lens, sequences.kv_lens))
    token_bytes = dim * kv_dtype.itemsize + (4 if kv_dtype in SCALED else 0)
    cost = Cost(
        num_bytes=2 * num_queries * num_heads * dim * BF16.itemsize
        + 2 * num_keys * num_kv_heads * token_bytes,
        num_flops=4 * pairs * num_heads * dim,
    )
    check = paged_check(sequences, heads, BF16, kv_dtype)
    is_square = len(sequences.query_lens) == 1 and num_queries == num_keys
    if not is_square or kv_dtype != BF16:
        return replace(check, cost=cost)

    def make(device: torch.device) -> Inputs:
        sizes = [(h, num_queries, dim) for h in (num_heads, num_kv_heads, num_kv_heads)]
        dense = [torch.randn(1, *size, device=device).to(BF16) for size in sizes]
        return check.make(device) | {"dense": dense}

    def torch_call(inputs: Inputs) -> Tensor:
        q, k, v = inputs["dense"]
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    return replace(check, make=make, cost=cost, torch_call=torch_call)


def _dense_bench(shape: _Dense) -> Case:
    num_heads, num_kv_heads, key_dim, value_dim = shape.heads
    per_token = num_kv_heads * (key_dim + value_dim)
    cost = Cost(
        num_bytes=BF16.itemsize * (shape.num_queries + shape.num_keys) * per_token
        + 4 * shape.num_queries * num_heads,
        num_flops=2 * _num_pairs(shape.num_queries, shape.num_keys) * per_token,
    )

    def make(device: torch.device) -> Inputs:
        return _dense_inputs(shape, BF16, device)

    def torch_call(inputs: Inputs) -> Tensor:
        q, k, v = (inputs[name].transpose(0, 1).unsqueeze(0) for name in "qkv")
        return scaled_dot_product_attention(q, k, v, is_causal=True)

    is_square = shape.num_queries == shape.num_keys
    atol = ATOL[BF16] * largest_output(shape.num_keys - shape.num_queries + 1)
    return Case("dense_attention", f"bf16-{shape.name}", BF16, make, call_dense, atol,
                cost=cost, torch_call=torch_call if is_square else None)  # fmt: skip
