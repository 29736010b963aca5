"""Bytes and FLOPs against numbers worked by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from dstune.engine.tracing.cost import Cost, cost_of, visible_keys
from dstune.kernels.batch import AttentionBatch
from dstune.kernels.cache import allocate_kv_layer, allocate_latent_layer
from dstune.kernels.select import OPERATIONS

BF16, F32 = torch.bfloat16, torch.float32


def batch(query_lens: tuple[int, ...], kv_lens: tuple[int, ...]) -> AttentionBatch:
    nothing = torch.empty(0)
    return AttentionBatch(
        nothing, nothing, nothing, nothing, nothing, 16, query_lens, kv_lens
    )  # fmt: skip


def cost(name: str, *arguments: object, layer: object = None) -> Cost:
    found = cost_of(name, layer)  # type: ignore[arg-type]
    assert found is not None
    return found(*arguments)


def x(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def test_decode_attention_reads_every_key_and_value_once() -> None:
    layer = allocate_kv_layer(4, 16, 2, 8, BF16, "cpu")
    found = cost("paged_attention", x(2, 4, 8), layer, batch((1, 1), (10, 20)), 1.0)
    per_token = 2 * 2 * 8 * 2  # K and V, 2 heads of 8, 2 bytes
    assert found.num_bytes == 30 * per_token + 2 * (2 * 4 * 8 * 2)  # and q, and out
    assert found.num_flops == 30 * 4 * (2 * 8 + 2 * 8)  # each head: a product with K, one with V


def test_scales_of_a_quantised_cache_are_read_too() -> None:
    layer = allocate_kv_layer(4, 16, 2, 8, torch.int8, "cpu")
    found = cost("paged_attention", x(1, 4, 8), layer, batch((1,), (10,)), 1.0)
    assert found.num_bytes == 10 * 2 * 2 * (8 + 4) + 2 * (4 * 8 * 2)


def test_prefill_is_causal() -> None:
    assert visible_keys((3,), (3,)) == 1 + 2 + 3
    assert visible_keys((2, 1), (5, 4)) == 4 + 5 + 4
    layer = allocate_kv_layer(4, 16, 2, 8, BF16, "cpu")
    found = cost("paged_attention", x(3, 4, 8), layer, batch((3,), (3,)), 1.0)
    assert found.num_flops == 6 * 4 * 32


def test_latent_attention_shares_latents_between_heads() -> None:
    layer = allocate_latent_layer(4, 16, 32, 8, torch.int8, BF16, "cpu")
    found = cost("latent_attention", x(1, 4, 32), x(1, 4, 8), layer, batch((1,), (10,)), 1.0)
    per_token = 32 + 8 * 2 + 4
    assert found.num_bytes == 10 * per_token + (2 * 4 * 32 + 4 * 8) * 2
    assert found.num_flops == 10 * 4 * 2 * (32 + 8 + 32)


def test_dense_attention_sees_what_the_diagonal_lets_it() -> None:
    arguments = (x(2, 4, 24), x(5, 4, 24), x(5, 4, 16), 1.0, 3, x(2, 4, dtype=F32))
    found = cost("dense_attention", *arguments)
    assert found.num_flops == (4 + 5) * 4 * 2 * (24 + 16)
    moved = (2 * 4 * 24 + 5 * 4 * 24 + 5 * 4 * 16 + 2 * 4 * 16) * 2 + 2 * 4 * 4
    assert found.num_bytes == moved
    later = cost("dense_attention", *arguments[:4], -1, arguments[5])  # keys after the first query
    assert later.num_flops == 1 * 4 * 2 * (24 + 16)


def test_a_linear_layer_reads_its_weight_once() -> None:
    layer = SimpleNamespace(num_bytes=1000, in_features=20, out_features=30)
    found = cost("linear.o_proj", x(3, 20), layer=layer)
    assert found == (1000 + 3 * (20 + 30) * 2, 2 * 3 * 20 * 30)


def test_a_product_for_each_head() -> None:
    layer = SimpleNamespace(num_bytes=4 * 16 * 32 * 2, in_features=16, out_features=32)
    found = cost("linear.absorb_key", x(4, 3, 16), layer=layer)
    assert found == (4 * 16 * 32 * 2 + 4 * 3 * (16 + 32) * 2, 4 * 3 * 2 * 16 * 32)


def test_an_embedding_reads_and_writes_rows() -> None:
    layer = SimpleNamespace(table=x(300, 64))
    assert cost("embedding", torch.arange(5), layer=layer) == (5 * (2 * 64 * 2 + 8), 0)


def test_experts_read_those_that_are_chosen() -> None:
    layer = SimpleNamespace(num_bytes=8 * 300, num_experts=8, features=48)
    ids = torch.tensor([[1, 5], [5, 1], [5, 2]])
    found = cost("experts", x(3, 64), x(3, 2, dtype=F32), ids, layer=layer)
    assert found.num_bytes == 3 * 300 + 2 * 3 * 64 * 2 + 6 * 4 + 6 * 8
    assert found.num_flops == 6 * 3 * 2 * 64 * 48


def test_experts_that_are_not_known_are_expected() -> None:
    layer = SimpleNamespace(num_bytes=8 * 300, num_experts=8, features=48)
    ids = torch.empty(2, 2, dtype=torch.int64, device="meta")
    found = cost("experts", x(2, 64), x(2, 2, dtype=F32), ids, layer=layer)
    touched = 8 * (1 - 0.75**2)  # each token leaves an expert out with 6/8
    assert found.num_bytes == touched * 300 + 2 * 2 * 64 * 2 + 4 * 4 + 4 * 8


def test_elementwise_operations_read_and_write() -> None:
    weight = x(64)
    assert cost("rms_norm", x(3, 64), weight, 1e-6) == (2 * 3 * 64 * 2 + 128, 4 * 3 * 64)
    added = cost("add_rms_norm", x(3, 64), x(3, 64, dtype=F32), weight, 1e-6)
    assert added.num_bytes == 2 * 3 * 64 * 2 + 2 * 3 * 64 * 4 + 128
    assert cost("silu_and_mul", x(3, 128)) == (3 * 3 * 64 * 2, 5 * 3 * 64)
    table = x(32, 4, dtype=F32)
    rope = cost("apply_rope", x(3, 2, 8), torch.arange(3), table, table, True)
    assert rope == (2 * 3 * 2 * 8 * 2 + 3 * (8 + 2 * 4 * 4), 3 * 3 * 2 * 8)


def test_writes_to_the_cache() -> None:
    layer = allocate_kv_layer(4, 16, 2, 8, torch.int8, "cpu")
    slots = torch.arange(3)
    stored = 3 * 2 * 2 * (8 + 4)
    plain = cost("write_kv", x(3, 2, 8), x(3, 2, 8), layer, slots)
    assert plain.num_bytes == 2 * 3 * 2 * 8 * 2 + stored + 3 * 8
    fused = cost("rotate_and_write_kv", x(3, 4 + 4, 8), 4, None, layer, batch((3,), (3,)))
    read_and_rotated = (3 * 8 * 8 + 3 * 4 * 8) * 2
    assert fused.num_bytes == read_and_rotated + stored + 3 * (8 + 8 + 2 * 4 * 4)
    assert fused.num_flops == 3 * 3 * (4 + 2) * 8


def test_latents_of_the_cache() -> None:
    layer = allocate_latent_layer(4, 16, 32, 8, BF16, BF16, "cpu")
    slots, per_token = torch.arange(3), (32 + 8) * 2
    plain = cost("write_latent", x(3, 32), x(3, 8), layer, slots)
    assert plain.num_bytes == 2 * 3 * per_token + 3 * 8
    norm = (x(32), 1e-6)
    fused = cost(
        "rotate_and_write_latent", x(3, 4, 24), x(3, 40), norm, None, layer, batch((3,), (3,))
    )
    rotary = 3 * 4 * 8
    moved = 2 * rotary * 2 + 2 * 3 * per_token + 3 * (8 + 8 + 2 * 4 * 4) + 32 * 2
    assert fused == (moved, 3 * (rotary + 3 * 8) + 4 * 3 * 32)
    gathered = cost("gather_latent", layer, None, 5, 16, F32)
    assert gathered.num_bytes == 5 * (per_token + (32 + 8) * 4)


def test_gates_and_sampling_read_logits() -> None:
    logits = x(3, 8, dtype=F32)
    assert cost("gate_softmax", logits, 2, 1.0, True) == (3 * 8 * 4 + 3 * 2 * 12, 3 * 8 * 5)
    assert cost("gate_sigmoid", logits, x(8), 2, 1, 1, 1.0, True).num_flops == 3 * 8 * 5
    column = x(3, dtype=F32)
    found = cost("sample", logits, column, column)
    assert found.num_bytes == 3 * 8 * 4 + 2 * 3 * 4 + 3 * 8


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_has_a_cost(name: str) -> None:
    assert cost_of(name, len) is not None
