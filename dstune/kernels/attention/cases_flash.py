"""What proves and what times attention of prompts: chunks over blocks, and dense keys for MLA."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from dstune.kernels.batch import AttentionBatch
from dstune.kernels.cache import SCALED, KvLayer
from dstune.kernels.cache_io.reference import MIN_SCALE, quantise_rows
from dstune.kernels.precision import KV_DTYPES
from dstune.kernels.select import Kernels
from dstune.kernels.workbench.case import Case, Cost, Inputs

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
INT8, FP8 = torch.int8, torch.float8_e4m3fn
NAMES = {dtype: name for name, dtype in KV_DTYPES.items()}
# Outputs are weighted means of values of size 1, up to 4 where a query sees few keys. fp32: the
# order of sums, and exponentials of 2 ulp. fp16 and bf16: the reference computes in fp32, the
# kernel rounds weights and output, each by 2^-11 or 2^-8 of that. fp8 is only read here, which the
# interpreter does exactly: its values are those of fp16.
ATOL = {FP32: 2e-5, FP16: 4e-3, BF16: 3e-2}


@dataclass(frozen=True)
class _Paged:
    """Sequences over scattered blocks, and heads."""

    query_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    block_size: int = 16
    heads: tuple[int, int, int] = (4, 2, 64)  # query heads, kv heads, dimensions
    num_padding: int = 0  # tokens past the last sequence
    first_block: int = 0  # the blocks before it are never touched

    @property
    def name(self) -> str:
        """Block size, heads, queries of keys in each sequence."""
        lengths = []
        for (q, kv), same in itertools.groupby(zip(self.query_lens, self.kv_lens, strict=True)):
            count = len(list(same))
            lengths.append(f"{q}of{kv}" + f"x{count}" * (count > 1))
        heads = "_".join(map(str, self.heads))
        far = "-far" * bool(self.first_block)
        padding = f"-pad{self.num_padding}" * bool(self.num_padding)
        return f"block{self.block_size}-h{heads}-{'+'.join(lengths)}{padding}{far}"

    def batch(self, device: torch.device) -> tuple[AttentionBatch, Tensor, int]:
        """Return the batch, the slots of all cached tokens, and how many blocks there are.

        Drawn on the CPU, so that `meta` has them too.
        """
        size = self.block_size
        counts = [-(-kv_len // size) for kv_len in self.kv_lens]
        order = torch.randperm(sum(counts) + 2, dtype=torch.int32) + self.first_block
        tables = torch.full((len(counts), max(1, *counts)), -1, dtype=torch.int32)
        cached, new, used = [], [], 0
        for row, (num, kv_len) in enumerate(zip(self.query_lens, self.kv_lens, strict=True)):
            tables[row, : counts[row]] = order[used : used + counts[row]]
            used += counts[row]
            place = torch.arange(kv_len)
            cached.append(tables[row, place // size].long() * size + place % size)
            new.append(cached[-1][kv_len - num :] if kv_len else torch.full((num,), -1))
        positions = [
            torch.arange(max(kv - num, 0), max(kv, num))
            for num, kv in zip(self.query_lens, self.kv_lens, strict=True)
        ]
        starts = torch.tensor([0, *itertools.accumulate(self.query_lens)], dtype=torch.int32)
        batch = AttentionBatch(
            positions=torch.cat(positions).to(device),
            slot_mapping=torch.cat(new).to(device),
            query_start=starts.to(device),
            kv_lens=torch.tensor(self.kv_lens, dtype=torch.int32).to(device),
            block_tables=tables.to(device),
            block_size=size,
            host_query_lens=self.query_lens,
            host_kv_lens=self.kv_lens,
        )
        return batch, torch.cat(cached).to(device), self.first_block + len(order)

    def layer(
        self, rows: tuple[Tensor, Tensor], slots: Tensor, num_blocks: int, dtype: torch.dtype
    ) -> KvLayer:
        """Return a cache that holds keys and values at slots and NaN elsewhere."""
        stored = [self._stored(one, slots, num_blocks, dtype) for one in rows]
        return KvLayer(stored[0][0], stored[1][0], stored[0][1], stored[1][1])

    def _stored(
        self, rows: Tensor, slots: Tensor, num_blocks: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor | None]:
        shape = (num_blocks, self.block_size, *rows.shape[1:])
        values = _untouched(shape, dtype, rows.device)
        scales = None
        if dtype in SCALED:
            scales = _untouched(shape[:3], FP32, rows.device)
            rows, row_scales = quantise_rows(rows, MIN_SCALE, dtype)
        for tensor in (values, scales):
            if tensor is not None and tensor.dtype != INT8 and not self.first_block:
                tensor.view(INT8).fill_(-1) if dtype == FP8 else tensor.fill_(torch.nan)
        bits = INT8 if dtype == FP8 else dtype  # torch has no indexed write of fp8
        values.flatten(0, 1).view(bits)[slots] = rows.to(dtype).view(bits)
        if scales is not None:
            scales.flatten(0, 1)[slots] = row_scales
        return values, scales


def _untouched(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return torch.empty(shape) that no poisoning fills: a far cache is gigabytes of no memory."""
    strides = torch.empty(shape, device="meta").stride()
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)


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
    for kv_dtype in (FP32, FP16, INT8, FP8):
        for dtype in (FP32, FP16):
            yield _paged_check(_Paged((20,), (37,)), dtype, kv_dtype)
    yield _paged_check(_Paged((20,), (37,)), BF16, BF16)
    yield _paged_check(_Paged((20,), (37,)), BF16, INT8)
    for shape in _paged_shapes():
        yield _paged_check(shape, FP32, FP32)
    for heads in ((9, 3, 64), (8, 1, 40), (4, 4, 128)):
        yield _paged_check(_Paged((30, 3), (45, 150), heads=heads), FP16, FP16)
        yield _paged_check(_Paged((30, 3), (45, 40), heads=heads), FP16, INT8)
    far = 2**31 // (16 * 1 * 64) + 1  # the first block beyond 2^31 elements
    yield _paged_check(_Paged((5,), (21,), heads=(2, 1, 64), first_block=far), FP32, INT8)
    for dense in _dense_shapes():
        yield _dense_check(dense, FP32)
    for dense in (_Dense(70, 150, (2, 2, 192, 128)), _Dense(20, 33, (4, 1, 64, 64), -5)):
        yield _dense_check(dense, FP16)
        yield _dense_check(dense, BF16)


def _paged_shapes() -> Iterator[_Paged]:
    yield _Paged((1,), (1,))
    yield _Paged((2,), (2,))
    yield _Paged((16,), (16,))  # one whole block
    yield from (_Paged((9,), (140,), size) for size in (16, 32, 64, 128, 256))  # ends inside
    yield _Paged((8,), (64,), 32)  # ends with a block and with a tile
    yield _Paged((40, 17), (40, 90), num_padding=3)
    # decodes, one of them a padded row, then chunks, an empty sequence and a row without a cache
    yield _Paged((1, 1, 5, 0, 18, 1, 1), (30, 0, 9, 7, 18, 0, 12), num_padding=2)
    yield _Paged((0, 0), (5, 0), num_padding=1)
    for heads in ((2, 2, 64), (6, 2, 40), (4, 1, 17), (8, 1, 128), (128, 8, 16), (3, 1, 96)):
        yield _Paged((7,), (35,), heads=heads)
    yield _Paged((5,), (20,), 64, (128, 128, 16))


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
            yield _paged_bench(_Paged((2048,), (2048 + context,), heads=llama), kv_dtype)
    yield _paged_bench(_Paged((512,) * 4, (1024,) * 4, 64, llama), BF16)
    yield _paged_bench(_Paged((8,) * 16, (2048,) * 16, heads=llama), BF16)
    yield _paged_bench(_Paged((2048,), (2048,), heads=(9, 3, 64)), BF16)
    for num_keys in (2048, 8192):
        yield _dense_bench(_Dense(2048, num_keys, (16, 16, 192, 128)))


def call_paged(kernels: Kernels, inputs: Inputs) -> tuple[Tensor, ...]:
    """Attend to the cache."""
    return (
        kernels.paged_attention(inputs["q"], inputs["layer"], inputs["batch"], inputs["scale"]),
    )


def call_dense(kernels: Kernels, inputs: Inputs) -> tuple[Tensor, ...]:
    """Attend to dense keys; lse, where there is one, is written too."""
    lse = inputs["lse"]
    out = kernels.dense_attention(
        inputs["q"], inputs["k"], inputs["v"], inputs["scale"], inputs["diagonal"], lse
    )
    return (out,) if lse is None else (out, lse)


def _paged_check(shape: _Paged, dtype: torch.dtype, kv_dtype: torch.dtype) -> Case:
    def make(device: torch.device) -> Inputs:
        return _paged_inputs(shape, dtype, kv_dtype, device)

    return Case("paged_attention", _paged_name(shape, dtype, kv_dtype), dtype, make, call_paged,
                ATOL[dtype], needs_fp8=kv_dtype == FP8)  # fmt: skip


def _paged_name(shape: _Paged, dtype: torch.dtype, kv_dtype: torch.dtype) -> str:
    return f"prefill-{NAMES[dtype]}-kv_{NAMES[kv_dtype]}-{shape.name}"


def _paged_inputs(
    shape: _Paged, dtype: torch.dtype, kv_dtype: torch.dtype, device: torch.device
) -> Inputs:
    num_heads, num_kv_heads, dim = shape.heads
    batch, slots, num_blocks = shape.batch(device)
    num_tokens = sum(shape.query_lens) + shape.num_padding
    # as the model's: queries are a part of the fused projection
    q = torch.randn(num_tokens, num_heads + 2 * num_kv_heads, dim, device=device).to(dtype)
    rows = [torch.randn(len(slots), num_kv_heads, dim, device=device) for _ in range(2)]
    return {
        "q": q[:, :num_heads],
        "layer": shape.layer((rows[0], rows[1]), slots, num_blocks, kv_dtype),
        "batch": batch,
        "scale": dim**-0.5,
    }


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


def _paged_bench(shape: _Paged, kv_dtype: torch.dtype) -> Case:
    num_heads, num_kv_heads, dim = shape.heads
    pairs = sum(map(_num_pairs, shape.query_lens, shape.kv_lens))
    token_bytes = dim * kv_dtype.itemsize + (4 if kv_dtype in SCALED else 0)
    cost = Cost(
        num_bytes=2 * sum(shape.query_lens) * num_heads * dim * BF16.itemsize
        + 2 * sum(shape.kv_lens) * num_kv_heads * token_bytes,
        num_flops=4 * pairs * num_heads * dim,
    )
    is_square = len(shape.query_lens) == 1 and shape.query_lens == shape.kv_lens

    def make(device: torch.device) -> Inputs:
        inputs = _paged_inputs(shape, BF16, kv_dtype, device)
        if is_square:
            sizes = [(h, shape.query_lens[0], dim) for h in (num_heads, num_kv_heads, num_kv_heads)]
            inputs["dense"] = [torch.randn(1, *s, device=device).to(BF16) for s in sizes]
        return inputs

    def torch_call(inputs: Inputs) -> Tensor:
        q, k, v = inputs["dense"]
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    return Case("paged_attention", _paged_name(shape, BF16, kv_dtype), BF16, make, call_paged,
                ATOL[BF16], needs_fp8=kv_dtype == FP8, cost=cost,
                torch_call=torch_call if is_square and kv_dtype == BF16 else None)  # fmt: skip


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
    return Case("dense_attention", f"bf16-{shape.name}", BF16, make, call_dense, ATOL[BF16],
                cost=cost, torch_call=torch_call if is_square else None)  # fmt: skip
