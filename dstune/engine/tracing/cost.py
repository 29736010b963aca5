"""The least that each operation has to move and to compute, from the very arguments of a call.

Everything is read once and written once, weights and scales included; a multiply-add counts as
two. Shapes alone are looked at, but for the experts that a step really touches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from dstune.kernels.batch import AttentionBatch, Rotation
from dstune.kernels.cache import KvLayer, LatentLayer

ID_BYTES = 8
SCALE_BYTES = 4
ANGLE_BYTES = 4


class Cost(NamedTuple):
    """Of one call."""

    num_bytes: int
    num_flops: int


CostOf = Callable[..., Cost]
NOTHING = Cost(0, 0)  # of what moves nothing worth counting


def cost_of(name: str, function: Callable[..., Any]) -> CostOf | None:
    """What computes an operation's cost from its arguments; `function` may be a packed layer."""
    if name.startswith("linear."):
        return _linear(function)
    if name == "embedding":
        return _embedding(function)
    if name == "experts":
        return _experts(function)
    return _COSTS.get(name)


def visible_keys(query_lens: tuple[int, ...], kv_lens: tuple[int, ...]) -> int:
    """Pairs of a query and a key that it sees: causal, the last query seeing every key."""
    return sum(
        queries * keys - queries * (queries - 1) // 2
        for queries, keys in zip(query_lens, kv_lens, strict=True)
    )


def kv_token_bytes(layer: KvLayer) -> int:
    """Keys, values and scales of one token in one layer."""
    heads, dim = layer.k.shape[2:]
    return 2 * heads * (dim * layer.k.element_size() + _scale_bytes(layer.k_scale))


def latent_token_bytes(layer: LatentLayer) -> int:
    """Latent, rotary key and scale of one token in one layer."""
    latent = layer.latent.shape[2] * layer.latent.element_size()
    return latent + layer.rope.shape[2] * layer.rope.element_size() + _scale_bytes(layer.scale)


def _scale_bytes(scale: Tensor | None) -> int:
    return 0 if scale is None else SCALE_BYTES


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _linear(layer: Any) -> CostOf:
    weight_bytes, row = layer.num_bytes, layer.in_features + layer.out_features
    row_flops = 2 * layer.in_features * layer.out_features

    def cost(x: Tensor) -> Cost:
        rows = x.numel() // layer.in_features  # of every head, where each has its product
        return Cost(weight_bytes + rows * row * x.element_size(), rows * row_flops)

    return cost


def _embedding(layer: Any) -> CostOf:
    row_bytes = layer.table.shape[1] * layer.table.element_size()
    return lambda token_ids: Cost(token_ids.numel() * (2 * row_bytes + ID_BYTES), 0)


def _experts(layer: Any) -> CostOf:
    expert_bytes, num_experts = layer.num_bytes / layer.num_experts, layer.num_experts

    def cost(x: Tensor, weights: Tensor, ids: Tensor) -> Cost:
        moved = 2 * _bytes(x) + _bytes(weights) + _bytes(ids)
        touched = _num_touched(ids, num_experts)
        flops = 2 * 3 * x.shape[1] * layer.features * ids.numel()
        return Cost(round(touched * expert_bytes) + moved, flops)

    return cost


def _num_touched(ids: Tensor, num_experts: int) -> float:
    """The experts that ids name; the expected number where the ids are not at hand."""
    if ids.device.type == "cpu":
        return len(set(ids.flatten().tolist()))
    num_tokens, top_k = ids.shape
    untouched: float = (1 - top_k / num_experts) ** num_tokens
    return num_experts * (1 - untouched)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Cost:
    return Cost(2 * _bytes(x) + _bytes(weight), 4 * x.numel())


def _add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Cost:
    return Cost(2 * _bytes(x) + 2 * _bytes(residual) + _bytes(weight), 5 * x.numel())


def _silu_and_mul(gate_up: Tensor) -> Cost:
    values = gate_up.numel() // 2
    return Cost(3 * values * gate_up.element_size(), 5 * values)


def _apply_rope(heads: Tensor, positions: Tensor, *tables: Any) -> Cost:
    angles = heads.shape[0] * (ID_BYTES + ANGLE_BYTES * heads.shape[2])
    return Cost(2 * _bytes(heads) + angles, 3 * heads.numel())


def _write_kv(k: Tensor, v: Tensor, layer: KvLayer, slots: Tensor) -> Cost:
    stored = k.shape[0] * (kv_token_bytes(layer) + ID_BYTES)
    return Cost(_bytes(k) + _bytes(v) + stored, 0)


def _rotate_and_write_kv(
    qkv: Tensor, num_heads: int, rotation: Rotation, layer: KvLayer, batch: AttentionBatch
) -> Cost:
    num_tokens, num_read, dim = qkv.shape
    moved = _bytes(qkv) + num_tokens * num_heads * dim * qkv.element_size()
    stored = num_tokens * (kv_token_bytes(layer) + 2 * ID_BYTES + ANGLE_BYTES * dim)
    rotated = num_read - layer.k.shape[2]  # heads of queries and keys
    return Cost(moved + stored, 3 * num_tokens * rotated * dim)


def _write_latent(latent: Tensor, rope: Tensor, layer: LatentLayer, slots: Tensor) -> Cost:
    stored = latent.shape[0] * (latent_token_bytes(layer) + ID_BYTES)
    return Cost(_bytes(latent) + _bytes(rope) + stored, 0)


def _rotate_and_write_latent(
    query: Tensor, latent_and_key: Tensor, norm: Any, rotation: Rotation, layer: LatentLayer,
    batch: AttentionBatch,
) -> Cost:  # fmt: skip
    num_tokens, rank, rope_dim = len(query), layer.latent.shape[2], layer.rope.shape[2]
    num_rotary = num_tokens * query.shape[1] * rope_dim
    moved = 2 * num_rotary * query.element_size() + _bytes(latent_and_key)
    stored = num_tokens * (latent_token_bytes(layer) + 2 * ID_BYTES + ANGLE_BYTES * rope_dim)
    flops = 3 * (num_rotary + num_tokens * rope_dim) + 4 * num_tokens * rank
    return Cost(moved + stored + _bytes(norm[0]), flops)


def _gather_latent(
    layer: LatentLayer, table: Tensor, num_keys: int, block_size: int, dtype: Any
) -> Cost:
    written = (layer.latent.shape[2] + layer.rope.shape[2]) * dtype.itemsize
    return Cost(num_keys * (latent_token_bytes(layer) + written), 0)


def _paged_attention(query: Tensor, layer: KvLayer, batch: AttentionBatch, scale: float) -> Cost:
    _, heads, dim = query.shape
    read = sum(batch.host_kv_lens) * kv_token_bytes(layer)
    seen = visible_keys(batch.host_query_lens, batch.host_kv_lens)
    return Cost(2 * _bytes(query) + read, 2 * heads * 2 * dim * seen)


def _latent_attention(
    latent: Tensor, rope: Tensor, layer: LatentLayer, batch: AttentionBatch, scale: float
) -> Cost:
    _, heads, rank = latent.shape
    read = sum(batch.host_kv_lens) * latent_token_bytes(layer)
    seen = visible_keys(batch.host_query_lens, batch.host_kv_lens)
    flops = 2 * heads * (2 * rank + rope.shape[2]) * seen
    return Cost(2 * _bytes(latent) + _bytes(rope) + read, flops)


def _dense_attention(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, diagonal: int, lse: Tensor
) -> Cost:
    num_queries, heads, dim = query.shape
    num_keys, value_dim = len(keys), values.shape[2]
    seen = sum(max(0, min(num_keys, diagonal + 1 + row)) for row in range(num_queries))
    out = num_queries * heads * value_dim * query.element_size()
    moved = _bytes(query) + _bytes(keys) + _bytes(values) + out + _bytes(lse)
    return Cost(moved, 2 * heads * (dim + value_dim) * seen)


def _gate(logits: Tensor, top_k: int) -> Cost:
    chosen = logits.shape[0] * top_k * (ID_BYTES + SCALE_BYTES)
    return Cost(_bytes(logits) + chosen, logits.numel() * (3 + top_k))


def _sample(logits: Tensor, *parameters: Tensor) -> Cost:
    rows = logits.shape[0]
    return Cost(
        _bytes(logits) + sum(_bytes(one) for one in parameters) + rows * ID_BYTES,
        10 * logits.numel(),
    )


_COSTS: dict[str, CostOf] = {
    "rms_norm": _rms_norm,
    "add_rms_norm": _add_rms_norm,
    "apply_rope": _apply_rope,
    "silu_and_mul": _silu_and_mul,
    "write_kv": _write_kv,
    "rotate_and_write_kv": _rotate_and_write_kv,
    "write_latent": _write_latent,
    "rotate_and_write_latent": _rotate_and_write_latent,
    "gather_latent": _gather_latent,
    "paged_attention": _paged_attention,
    "latent_attention": _latent_attention,
    "dense_attention": _dense_attention,
    "gate_softmax": lambda logits, top_k, *rest: _gate(logits, top_k),
    "gate_sigmoid": lambda logits, bias, top_k, *rest: _gate(logits, top_k),
    "sample": _sample,
}
