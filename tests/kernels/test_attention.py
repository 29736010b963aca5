"""Paged, latent and dense attention against the reference, over odd batches."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dstune.errors import UsageError
from dstune.kernels.batch import AttentionBatch
from dstune.kernels.cache import KvLayer, allocate_kv_layer, allocate_latent_layer
from dstune.kernels.select import Kernels

# Queries and contexts of each sequence, block size.
BATCHES = {
    "decode": ((1, 1, 1, 1), (1, 17, 128, 300), 16),
    "mixed": ((1, 5, 0, 40, 33), (260, 9, 7, 40, 70), 8),
    "one-long-block": ((70,), (200,), 256),
    "chunk-of-long": ((6,), (600,), 32),
}
# fp32: rounding over a few hundred terms; bf16 outputs and weights have 8 bits.
LIMIT = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
PAIRS = [
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.int8),
    (torch.float32, torch.int8),
    (torch.bfloat16, torch.float16),
]
PAIR_IDS = [f"{q}-{kv}".replace("torch.", "") for q, kv in PAIRS]


def _filled(layer: Any, *shapes: Any) -> None:
    """Fill what a layer has not written with NaN."""
    for tensor in vars(layer).values():
        if tensor is not None and tensor.is_floating_point():
            tensor.fill_(torch.nan)


def _kv_layer(cpu: Kernels, sequences: Any, heads: int, dim: int, dtype: torch.dtype,
              cache_dtype: torch.dtype) -> KvLayer:  # fmt: skip
    size = sequences.batch.block_size
    layer = allocate_kv_layer(sequences.num_blocks, size, heads, dim, cache_dtype, "cpu")
    _filled(layer)
    slots = torch.cat(sequences.slots)
    k, v = (torch.randn(len(slots), heads, dim).to(dtype) for _ in range(2))
    cpu.write_kv(k, v, layer, slots)
    return layer


@pytest.mark.parametrize("dtype,cache_dtype", PAIRS, ids=PAIR_IDS)
@pytest.mark.parametrize(
    "heads,kv_heads,dim",
    [(9, 3, 64), (8, 2, 32), (3, 3, 16), (8, 1, 40), (2, 1, 256), (4, 2, 17)],
    ids=lambda n: str(n),
)
@pytest.mark.parametrize("name", BATCHES)
def test_paged(
    cpu: Kernels,
    reference: Kernels,
    make_sequences: Callable[..., Any],
    name: str,
    heads: int,
    kv_heads: int,
    dim: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
) -> None:
    sequences = make_sequences(*BATCHES[name])
    layer = _kv_layer(cpu, sequences, kv_heads, dim, dtype, cache_dtype)
    padding = 2  # tokens past the last sequence
    tokens = sum(sequences.batch.host_query_lens) + padding
    q = torch.randn(tokens, heads + 1, dim).to(dtype)[:, :heads]
    ours = cpu.paged_attention(q, layer, sequences.batch, dim**-0.5)
    theirs = reference.paged_attention(q, layer, sequences.batch, dim**-0.5)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=LIMIT[dtype])
    assert torch.equal(ours[-padding:], torch.zeros_like(ours[-padding:]))


@pytest.mark.parametrize("dtype,cache_dtype", PAIRS[:4], ids=PAIR_IDS[:4])
@pytest.mark.parametrize(
    "heads,rank,rope", [(8, 64, 16), (20, 128, 64), (3, 40, 8), (2, 33, 6)], ids=lambda n: str(n)
)
@pytest.mark.parametrize("name", BATCHES)
def test_latent(
    cpu: Kernels,
    reference: Kernels,
    make_sequences: Callable[..., Any],
    name: str,
    heads: int,
    rank: int,
    rope: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
) -> None:
    sequences = make_sequences(*BATCHES[name])
    layer = allocate_latent_layer(
        sequences.num_blocks, sequences.batch.block_size, rank, rope, cache_dtype, dtype, "cpu"
    )
    _filled(layer)
    slots = torch.cat(sequences.slots)
    latents, ropes = torch.randn(len(slots), rank).to(dtype), torch.randn(len(slots), rope)
    cpu.write_latent(latents, ropes.to(dtype), layer, slots)
    tokens = sum(sequences.batch.host_query_lens)
    q = torch.randn(tokens, heads, rank + rope).to(dtype)
    arguments = (q[..., :rank], q[..., rank:], layer, sequences.batch, (rank + rope) ** -0.5)
    ours, theirs = cpu.latent_attention(*arguments), reference.latent_attention(*arguments)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=LIMIT[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "queries,keys,heads,kv_heads,key_dim,value_dim",
    [(5, 5, 8, 8, 48, 32), (70, 130, 4, 2, 192, 128), (1, 9, 3, 1, 24, 40), (0, 0, 2, 1, 8, 8)],
    ids=lambda n: str(n),
)
def test_dense(
    cpu: Kernels,
    reference: Kernels,
    queries: int,
    keys: int,
    heads: int,
    kv_heads: int,
    key_dim: int,
    value_dim: int,
    dtype: torch.dtype,
) -> None:
    q = torch.randn(queries, heads, key_dim).to(dtype)
    k = torch.randn(keys, kv_heads, key_dim).to(dtype)
    v = torch.randn(keys, kv_heads, value_dim + 8).to(dtype)[..., :value_dim]
    ours, theirs = (b.dense_attention(q, k, v, 0.1) for b in (cpu, reference))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=LIMIT[dtype])


# Queries, keys, heads, kv heads, and the last key that query 0 sees.
DIAGONALS = {
    "first-rows-empty": (40, 30, 8, 2, -17),
    "all-rows-empty": (20, 30, 4, 4, -20),
    "no-keys": (3, 0, 4, 2, -1),
    "beyond-the-keys": (24, 30, 6, 2, 300),
    "far-beyond-the-keys": (5, 30, 6, 2, 10**10),
    "above-the-corner": (130, 140, 4, 4, 3),
    "wide-split-keys": (20, 600, 8, 4, 520),
    "wide-split-keys-cut": (20, 600, 8, 4, 250),
    "narrow-split-keys": (3, 600, 4, 1, 700),
    "narrow-rows-empty": (3, 600, 4, 1, -2),
    "narrow-a-split-for-the-last-row": (3, 600, 4, 1, 254),
    "far-below": (5, 30, 6, 2, -(10**10)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", DIAGONALS)
def test_dense_diagonal_and_lse(
    cpu: Kernels, reference: Kernels, name: str, dtype: torch.dtype
) -> None:
    queries, keys, heads, kv_heads, diagonal = DIAGONALS[name]
    q = torch.randn(queries, heads, 48).to(dtype)
    k, v = torch.randn(keys, kv_heads, 48).to(dtype), torch.randn(keys, kv_heads, 40).to(dtype)
    ours_lse, theirs_lse = (torch.full((queries, heads), torch.nan) for _ in range(2))
    ours = cpu.dense_attention(q, k, v, 0.2, diagonal, ours_lse)
    theirs = reference.dense_attention(q, k, v, 0.2, diagonal, theirs_lse)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=LIMIT[dtype])
    # bf16 products are exact in fp32, so lse is fp32's in both
    torch.testing.assert_close(ours_lse, theirs_lse, rtol=1e-5, atol=1e-5)
    without = cpu.dense_attention(q, k, v, 0.2, diagonal)
    assert torch.equal(without, ours)
    num_empty = min(max(-diagonal, 0), queries) if keys else queries
    assert torch.equal(ours[:num_empty], torch.zeros_like(ours[:num_empty]))
    assert torch.isneginf(ours_lse).sum() == num_empty * heads


def test_dense_parts_merge_to_the_whole(cpu: Kernels) -> None:
    q, k, v = (torch.randn(30, 4, 32) for _ in range(3))
    lse, part_lses = torch.empty(30, 4), torch.empty(2, 30, 4)
    whole = cpu.dense_attention(q, k, v, 0.2, None, lse)
    parts = [
        cpu.dense_attention(q, k[begin:end], v[begin:end], 0.2, -begin, part_lse)
        for (begin, end), part_lse in zip(((0, 13), (13, 30)), part_lses, strict=True)
    ]
    shares = (part_lses - lse).exp().unsqueeze(-1)
    torch.testing.assert_close((torch.stack(parts) * shares).sum(0), whole, rtol=0, atol=1e-5)
    torch.testing.assert_close(part_lses.logsumexp(0), lse, rtol=0, atol=1e-5)


def test_dense_lse_of_another_layout_is_refused(cpu: Kernels) -> None:
    q = torch.randn(3, 4, 8)
    for lse in (torch.empty(4, 3).t(), torch.empty(3, 4, dtype=torch.bfloat16)):
        with pytest.raises(UsageError, match="lse must be"):
            cpu.dense_attention(q, q, q, 1.0, None, lse)


def test_paged_row_without_keys(cpu: Kernels, make_sequences: Callable[..., Any]) -> None:
    """What a padded decode row is: one query, nothing in the cache."""
    layer = _kv_layer(cpu, make_sequences((1,), (5,), 8), 2, 16, torch.float32, torch.float32)
    batch = AttentionBatch(
        positions=torch.zeros(1, dtype=torch.int64),
        slot_mapping=torch.tensor([-1]),
        query_start=torch.tensor([0, 1], dtype=torch.int32),
        kv_lens=torch.zeros(1, dtype=torch.int32),
        block_tables=torch.full((1, 1), -1, dtype=torch.int32),
        block_size=8,
        host_query_lens=(1,),
        host_kv_lens=(0,),
    )
    out = cpu.paged_attention(torch.randn(1, 4, 16), layer, batch, 0.25)
    assert torch.equal(out, torch.zeros(1, 4, 16))


@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, torch.int8], ids=str)
def test_a_sequence_does_not_depend_on_its_batch_mates(
    cpu: Kernels, make_sequences: Callable[..., Any], cache_dtype: torch.dtype
) -> None:
    query_lens, kv_lens, size = (1, 30, 1, 1, 7), (700, 64, 20, 256, 300), 16
    sequences = make_sequences(query_lens, kv_lens, size)
    layer = _kv_layer(cpu, sequences, 2, 64, torch.bfloat16, cache_dtype)
    q = torch.randn(sum(query_lens), 6, 64).to(torch.bfloat16)
    together = cpu.paged_attention(q, layer, sequences.batch, 0.125)
    start = 0
    for index, query_len in enumerate(query_lens):
        alone = make_sequences((query_len,), (kv_lens[index],), size).batch
        alone.block_tables.copy_(sequences.batch.block_tables[index, : alone.block_tables.shape[1]])
        rows = slice(start, start + query_len)
        assert torch.equal(cpu.paged_attention(q[rows], layer, alone, 0.125), together[rows])
        start += query_len


class _Shifted:
    """A tensor that claims to start `bytes` earlier than it does."""

    def __init__(self, tensor: Tensor, num_bytes: int) -> None:
        self.shape, self.dtype = tensor.shape, tensor.dtype
        self._address = tensor.data_ptr() - num_bytes

    def data_ptr(self) -> int:
        return self._address


@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.int8], ids=str)
def test_blocks_beyond_two_to_the_31_elements(
    cpu: Kernels, make_sequences: Callable[..., Any], cache_dtype: torch.dtype
) -> None:
    """The same blocks under huge ids and a base moved back as far: only addresses differ."""
    heads, dim, size = 2, 64, 16
    far = 2**32 // (heads * dim * size) + 3
    near, remote = (
        make_sequences((1, 20), (40, 20), size, first_block=first) for first in (0, far)
    )
    layer = _kv_layer(cpu, near, heads, dim, torch.float32, cache_dtype)
    per_block = heads * dim * size
    parts: list[Any] = [_Shifted(t, far * per_block * t.element_size()) for t in (layer.k, layer.v)]
    parts += [
        None if t is None else _Shifted(t, far * heads * size * 4)
        for t in (layer.k_scale, layer.v_scale)
    ]
    moved = KvLayer(*parts)
    batch = remote.batch
    batch.block_tables.copy_(near.batch.block_tables)
    batch.block_tables[near.batch.block_tables >= 0] += far
    k, v = torch.randn(1, heads, dim), torch.randn(1, heads, dim)
    cpu.write_kv(k, v, moved, near.batch.slot_mapping[:1] + far * size)
    q = torch.randn(21, 4, dim)
    expected = cpu.paged_attention(q, layer, near.batch, 0.125)
    assert torch.equal(cpu.paged_attention(q, moved, batch, 0.125), expected)
    written = layer.k.flatten(0, 1)[near.batch.slot_mapping[0]].float()
    scale = 1.0 if layer.k_scale is None else layer.k_scale.flatten(0, 1)[
        near.batch.slot_mapping[0]
    ].unsqueeze(-1)  # fmt: skip
    torch.testing.assert_close(written * scale, k[0], rtol=0, atol=0.02)
