"""What proves and what times attention of decode steps: one query a sequence, and MLA's few."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from dstune.kernels.cache import SCALED, KvLayer, LatentLayer
from dstune.kernels.device import gpu_of, pretending
from dstune.kernels.precision import KV_DTYPES
from dstune.kernels.select import Kernels
from dstune.kernels.workbench.case import Case, Cost, Inputs
from dstune.kernels.workbench.sequences import Sequences

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
INT8, FP8 = torch.int8, torch.float8_e4m3fn
NAMES = {dtype: name for name, dtype in KV_DTYPES.items()}
# Outputs are weighted means of values of size 1, up to 4 where few tokens are seen. fp32: the
# order of sums, exponentials of 2 ulp and products of three tf32 parts. fp16 and bf16: the
# reference computes in fp32, the kernel rounds weights and output, by 2^-11 and 2^-8 of that.
ATOL = {FP32: 2e-5, FP16: 4e-3, BF16: 3e-2}
E = 2.72  # softmax of N(0, 1) scores spreads a row over about 1/e of its keys
MANY_MULTIPROCESSORS = 132  # the interpreter pretends to have 4, too few for many splits


def largest_output(num_keys: int) -> float:
    """Return about the largest value of a mean over num_keys random values, 1 at most.

    Outputs shrink with the context, and what is allowed shrinks with them: else a kernel could
    leave keys of a long context out.
    """
    return min(1.0, 4 * (E / max(num_keys, 1)) ** 0.5)


def checks() -> Iterator[Case]:
    """Yield small cases of every dtype, block size, head size and kind of batch.

    torch writes the fp8 caches and the kernels only read them, which the interpreter does exactly.
    """
    yield from _paged_checks()
    yield from _latent_checks()


def _paged_checks() -> Iterator[Case]:
    heads = (4, 2, 64)
    yield paged_check(Sequences((1,), (1,)), heads, FP32, FP32)
    for size in (16, 32, 64, 128):  # one token, a full block, the middle of one, an empty slot
        ragged = Sequences((1,) * 4, (1, size, size + 5, 0), size)
        for kv_dtype in (FP32, INT8):
            yield paged_check(ragged, heads, FP32, kv_dtype)
    some = Sequences((1,) * 3, (70, 0, 19), num_padding=2)
    for dtype, kv_dtype in itertools.product((FP32, FP16), (FP32, FP16, INT8, FP8)):
        yield paged_check(some, heads, dtype, kv_dtype)
    for kv_dtype in (BF16, FP16, INT8, FP8):
        yield paged_check(some, heads, BF16, kv_dtype)
    few = Sequences((1, 1), (40, 21))
    for group, dim in itertools.product((1, 3, 4, 8), (17, 40, 64, 128)):
        dtype = FP32 if dim in (17, 64) else FP16
        yield paged_check(few, (2 * group, 2, dim), dtype, dtype)
        if dim > 17:
            yield paged_check(few, (group, 1, dim), FP16, INT8)
    yield paged_check(few, (128, 8, 64), FP16, FP16)
    yield paged_check(Sequences((1,), (33,)), (128, 1, 32), FP32, INT8)  # a group of 128
    for long in (Sequences((1,), (300,)), Sequences((1,) * 4, (700, 3, 0, 129), 64)):
        for kv_dtype in (FP32, INT8):  # several splits, some of them empty
            yield paged_check(long, heads, FP32, kv_dtype)
    yield _many_splits(paged_check(Sequences((1, 1), (2300, 200)), (2, 1, 32), FP32, FP32))
    for lens in (((1, 1, 7), (30, 200, 9)), ((1, 0, 1, 3), (5, 8, 40, 30)), ((0, 1), (4, 20))):
        yield paged_check(Sequences(*lens), heads, FP32, FP32)  # decodes before chunks
    first = 2**31 // (16 * 64) + 1  # the first block beyond 2^31 elements
    far = Sequences((1, 1), (21, 3), first_block=first)
    yield paged_check(far, (2, 1, 64), FP32, INT8)


def _latent_checks() -> Iterator[Case]:
    heads = (16, 64, 16)
    for size in (16, 32, 64, 128):
        ragged = Sequences((1,) * 4, (1, size, size + 5, 0), size)
        for kv_dtype in (FP32, INT8):
            yield _latent_check(ragged, heads, FP32, kv_dtype)
    some = Sequences((1,) * 3, (70, 0, 19), num_padding=2)
    for dtype, kv_dtype in itertools.product((FP32, FP16), (FP32, FP16, INT8, FP8)):
        yield _latent_check(some, heads, dtype, kv_dtype)
    for kv_dtype in (BF16, INT8, FP8):
        yield _latent_check(some, heads, BF16, kv_dtype)
    few = Sequences((1, 1), (40, 21))
    for odd in ((3, 40, 8), (2, 33, 6), (20, 32, 8), (128, 64, 16)):
        yield _latent_check(few, odd, FP32, FP32)
        yield _latent_check(few, odd, FP16, INT8)
    yield _latent_check(few, (128, 64, 16), FP16, FP16)
    for kv_dtype in (FP16, INT8):  # DeepSeek's sizes
        yield _latent_check(few, (16, 512, 64), FP16, kv_dtype)
    for long in (Sequences((1,), (300,)), Sequences((1,) * 4, (700, 3, 0, 129), 64)):
        for kv_dtype in (FP32, INT8):
            yield _latent_check(long, heads, FP32, kv_dtype)
    yield _many_splits(_latent_check(Sequences((1, 1), (2300, 200)), (4, 32, 8), FP16, FP16))
    for lens in (((1, 2, 8), (9, 40, 8)), ((3, 1, 0, 5), (30, 7, 6, 70)), ((40,), (70,))):
        for dtype in (FP32, FP16):  # several queries, each with its own causal limit
            yield _latent_check(Sequences(*lens), (4, 40, 8), dtype, dtype)
    # the first queries see nothing of the last splits
    chunk = Sequences((60, 1), (300, 260))
    yield _many_splits(_latent_check(chunk, (2, 32, 8), FP16, INT8))
    first = 2**31 // (16 * 64) + 1
    far = Sequences((1, 1), (21, 3), first_block=first)
    yield _latent_check(far, (4, 64, 8), FP32, INT8)


def benches() -> Iterator[Case]:
    """Yield decode steps of Llama-3-8B, DeepSeek-V2-Lite and DeepSeek-V3."""
    steps = list(itertools.product((1, 32), (4096, 32768), (BF16, INT8)))
    for num_seqs, context, kv_dtype in steps:
        yield _paged_bench(Sequences((1,) * num_seqs, (context,) * num_seqs), (32, 8, 128),
                           kv_dtype)  # fmt: skip
    for num_seqs, context, kv_dtype in steps:
        yield _latent_bench(Sequences((1,) * num_seqs, (context,) * num_seqs), (16, 512, 64),
                            kv_dtype)  # fmt: skip
    for kv_dtype in (BF16, INT8):
        yield _latent_bench(Sequences((1,) * 32, (4096,) * 32), (128, 512, 64), kv_dtype)


def call_paged(kernels: Kernels, inputs: Inputs) -> tuple[Tensor, ...]:
    """Attend to cached keys and values."""
    return (
        kernels.paged_attention(inputs["q"], inputs["layer"], inputs["batch"], inputs["scale"]),
    )


def call_latent(kernels: Kernels, inputs: Inputs) -> tuple[Tensor, ...]:
    """Attend to cached latents."""
    return (
        kernels.latent_attention(
            inputs["q_latent"], inputs["q_rope"], inputs["layer"], inputs["batch"], inputs["scale"]
        ),
    )


def _atol(sequences: Sequences, dtype: torch.dtype) -> float:
    """Return what is allowed of the row that sees the fewest keys."""
    lens = zip(sequences.query_lens, sequences.kv_lens, strict=True)
    seen = [kv_len - num + 1 for num, kv_len in lens if num and kv_len]
    return ATOL[dtype] * largest_output(min(seen, default=1))


def _many_splits(case: Case) -> Case:
    """The case as a GPU with many multiprocessors would run it."""

    def call(kernels: Kernels, inputs: Inputs) -> tuple[Tensor, ...]:
        gpu = gpu_of(inputs["batch"].kv_lens.device)
        with pretending(replace(gpu, num_multiprocessors=MANY_MULTIPROCESSORS)):
            return case.call(kernels, inputs)

    return replace(case, name=f"{case.name}-many_splits", call=call)


def _name(sequences: Sequences, sizes: tuple[int, ...], *dtypes: torch.dtype) -> str:
    is_decode = max(sequences.query_lens) <= 1
    dtype, kv_dtype = (NAMES[one] for one in dtypes)
    sized = f"{dtype}-kv_{kv_dtype}-h{'_'.join(map(str, sizes))}-{sequences.name}"
    return f"{'decode' if is_decode else 'prefill'}-{sized}"


def paged_check(
    sequences: Sequences, sizes: tuple[int, int, int], dtype: torch.dtype, kv_dtype: torch.dtype
) -> Case:
    """Attention to a paged cache; sizes are query heads, KV heads, dimensions."""
    num_heads, num_kv_heads, dim = sizes

    def make(device: torch.device) -> Inputs:
        batch, slots = sequences.lay_out(device)
        # as the model's: queries are a part of the fused projection
        fused = num_heads + 2 * num_kv_heads
        q = torch.randn(sequences.num_tokens, fused, dim, device=device).to(dtype)
        k, v = (sequences.store((num_kv_heads, dim), slots, kv_dtype) for _ in range(2))
        layer = KvLayer(k[0], v[0], k[1], v[1])
        return {"q": q[:, :num_heads], "layer": layer, "batch": batch, "scale": dim**-0.5}

    return Case("paged_attention", _name(sequences, sizes, dtype, kv_dtype), dtype, make,
                call_paged, _atol(sequences, dtype), needs_fp8=kv_dtype == FP8)  # fmt: skip


def _latent_check(
    sequences: Sequences, sizes: tuple[int, int, int], dtype: torch.dtype, kv_dtype: torch.dtype
) -> Case:
    """Sizes: heads, rank, rotary dimensions."""
    num_heads, rank, rope_dim = sizes

    def make(device: torch.device) -> Inputs:
        batch, slots = sequences.lay_out(device)
        # as the model's: latent queries come transposed, rotary ones are the end of a query
        q_latent = torch.randn(num_heads, sequences.num_tokens, rank, device=device).to(dtype)
        q = torch.randn(sequences.num_tokens, num_heads, 2 * rope_dim, device=device).to(dtype)
        latent, scale = sequences.store((rank,), slots, kv_dtype)
        rope, _ = sequences.store((rope_dim,), slots, dtype)
        return {
            "q_latent": q_latent.transpose(0, 1),
            "q_rope": q[..., rope_dim:],
            "layer": LatentLayer(latent, rope, scale),
            "batch": batch,
            "scale": (rank + rope_dim) ** -0.5,
        }

    return Case("latent_attention", _name(sequences, sizes, dtype, kv_dtype), dtype, make,
                call_latent, _atol(sequences, dtype), needs_fp8=kv_dtype == FP8)  # fmt: skip


def _paged_bench(sequences: Sequences, sizes: tuple[int, int, int], kv_dtype: torch.dtype) -> Case:
    num_heads, num_kv_heads, dim = sizes
    num_seqs, tokens = len(sequences.kv_lens), sum(sequences.kv_lens)
    row_bytes = dim * kv_dtype.itemsize + (4 if kv_dtype in SCALED else 0)
    cost = Cost(
        num_bytes=2 * num_seqs * num_heads * dim * BF16.itemsize
        + 2 * tokens * num_kv_heads * row_bytes,
        num_flops=4 * tokens * num_heads * dim,
    )
    check = paged_check(sequences, sizes, BF16, kv_dtype)
    if kv_dtype != BF16:
        return replace(check, cost=cost)

    def make(device: torch.device) -> Inputs:
        inputs = check.make(device)
        shape = (num_seqs, num_kv_heads, tokens // num_seqs, dim)
        dense = [torch.randn(shape, dtype=BF16, device=device) for _ in range(2)]
        return inputs | {"dense": [inputs["q"].unsqueeze(2).contiguous(), *dense]}

    def torch_call(inputs: Inputs) -> Tensor:
        q, k, v = inputs["dense"]
        return scaled_dot_product_attention(q, k, v, enable_gqa=True)

    return replace(check, make=make, cost=cost, torch_call=torch_call)


def _latent_bench(sequences: Sequences, sizes: tuple[int, int, int], kv_dtype: torch.dtype) -> Case:
    num_heads, rank, rope_dim = sizes
    num_seqs, tokens = len(sequences.kv_lens), sum(sequences.kv_lens)
    row_bytes = rank * kv_dtype.itemsize + rope_dim * BF16.itemsize
    row_bytes += 4 if kv_dtype in SCALED else 0
    cost = Cost(
        num_bytes=num_seqs * num_heads * (2 * rank + rope_dim) * BF16.itemsize + tokens * row_bytes,
        num_flops=2 * tokens * num_heads * (2 * rank + rope_dim),
    )
    check = _latent_check(sequences, sizes, BF16, kv_dtype)
    if kv_dtype != BF16:
        return replace(check, cost=cost)

    def make(device: torch.device) -> Inputs:
        inputs = check.make(device)
        keys = (num_seqs, tokens // num_seqs, rank + rope_dim)
        query = torch.cat([inputs["q_latent"], inputs["q_rope"]], dim=-1)
        return inputs | {"query": query, "keys": torch.randn(keys, dtype=BF16, device=device)}

    def torch_call(inputs: Inputs) -> Tensor:
        keys = inputs["keys"]  # latent and rotary part side by side
        scores = torch.bmm(inputs["query"], keys.mT) * inputs["scale"]
        return torch.bmm(scores.softmax(-1), keys[..., :rank])

    return replace(check, make=make, cost=cost, torch_call=torch_call)
