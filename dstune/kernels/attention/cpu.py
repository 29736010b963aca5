"""Attention on the native kernels: one call for all the sequences of a step."""

import torch
from torch import Tensor

from dstune.errors import UsageError
from dstune.kernels.batch import AttentionBatch
from dstune.kernels.cache import KvLayer, LatentLayer
from dstune.kernels.native import lib
from dstune.kernels.native.arguments import CODES, activation_code, pointer, rows


def paged_attention(q: Tensor, layer: KvLayer, batch: AttentionBatch, scale: float) -> Tensor:
    """Attend from q [T, H, D] to each sequence's cache -> [T, H, D]; see the reference."""
    q = rows(q)
    num_tokens, num_heads, dim = q.shape
    keys = layer.k
    out = q.new_empty(num_tokens, num_heads, dim)
    token_stride, head_stride, _ = q.stride()
    tables, kv_lens = batch.block_tables, batch.kv_lens
    lib().paged_attention(
        q.data_ptr(), token_stride, head_stride, keys.data_ptr(), layer.v.data_ptr(),
        pointer(layer.k_scale), pointer(layer.v_scale), batch.query_start.data_ptr(),
        kv_lens.data_ptr(), tables.data_ptr(), tables.stride()[0], batch.block_size,
        out.data_ptr(), num_tokens, len(kv_lens), num_heads, keys.shape[2], dim, scale,
        activation_code(q), CODES[keys.dtype], torch.get_num_threads(),
    )  # fmt: skip
    return out


def latent_attention(
    q_latent: Tensor, q_rope: Tensor, layer: LatentLayer, batch: AttentionBatch, scale: float
) -> Tensor:
    """Attend in the latent space: q_latent [T, H, R], q_rope [T, H, P] -> [T, H, R]."""
    q_latent, q_rope = rows(q_latent), rows(q_rope)
    num_tokens, num_heads, latent_dim = q_latent.shape
    out = q_latent.new_empty(num_tokens, num_heads, latent_dim)
    token_stride, head_stride, _ = q_latent.stride()
    rope_token_stride, rope_head_stride, _ = q_rope.stride()
    tables, kv_lens = batch.block_tables, batch.kv_lens
    lib().latent_attention(
        q_latent.data_ptr(), token_stride, head_stride, q_rope.data_ptr(),
        rope_token_stride, rope_head_stride, layer.latent.data_ptr(), layer.rope.data_ptr(),
        pointer(layer.scale), batch.query_start.data_ptr(), kv_lens.data_ptr(),
        tables.data_ptr(), tables.stride()[0], batch.block_size, out.data_ptr(), num_tokens,
        len(kv_lens), num_heads, latent_dim, q_rope.shape[2], scale,
        activation_code(q_latent), CODES[layer.latent.dtype], CODES[layer.rope.dtype],
        torch.get_num_threads(),
    )  # fmt: skip
    return out


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    diagonal: int | None = None,
    lse: Tensor | None = None,
) -> Tensor:
    """Attend causally: q [Tq, H, Dk], k [Tk, Hkv, Dk], v [Tk, Hkv, Dv] -> [Tq, H, Dv].

    See the reference for `diagonal` and `lse`.
    """
    q, k, v = rows(q), rows(k), rows(v)
    if k.dtype != v.dtype:
        raise UsageError(f"dense attention wants keys and values alike, not {k.dtype}, {v.dtype}")
    num_queries, num_heads, key_dim = q.shape
    num_keys, num_kv_heads, value_dim = v.shape
    if lse is not None and (lse.dtype != torch.float32 or not lse.is_contiguous()):
        raise UsageError(f"lse must be contiguous fp32, not {lse.dtype}, strides {lse.stride()}")
    diagonal = num_keys - num_queries if diagonal is None else diagonal
    out = q.new_empty(num_queries, num_heads, value_dim)
    lib().dense_attention(
        q.data_ptr(), q.stride(0), q.stride(1), k.data_ptr(), k.stride(0), k.stride(1),
        v.data_ptr(), v.stride(0), v.stride(1), out.data_ptr(), pointer(lse), num_queries,
        num_keys, diagonal, num_heads, num_kv_heads, key_dim, value_dim, scale,
        activation_code(q), CODES[k.dtype], torch.get_num_threads(),
    )  # fmt: skip
    return out
