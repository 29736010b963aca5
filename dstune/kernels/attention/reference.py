"""Attention in plain torch: one sequence at a time, everything in fp32."""

import torch
from torch import Tensor

from dstune.kernels.batch import AttentionBatch
from dstune.kernels.cache import KvLayer, LatentLayer
from dstune.kernels.cache_io.reference import load, sequence_slots


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    diagonal: int | None = None,
    lse: Tensor | None = None,
) -> Tensor:
    """Attend causally: q [Tq, H, Dk], k [Tk, Hkv, Dk], v [Tk, Hkv, Dv] -> [Tq, H, Dv].

    Query i sees the keys 0 .. diagonal + i; by default diagonal is Tk - Tq, so that the last query
    sees every key. H is a multiple of Hkv; Dk and Dv may differ. A query that sees no key gets
    zeros. `lse` fp32 [Tq, H], where given, receives the natural logarithm of the sum of each
    query's exp(score), -inf for none: results over parts of the keys can be merged by it.
    """
    num_queries, num_heads, _ = q.shape
    num_keys, num_kv_heads, value_dim = v.shape
    diagonal = num_keys - num_queries if diagonal is None else diagonal
    grouped = q.float().view(num_queries, num_kv_heads, num_heads // num_kv_heads, q.shape[-1])
    scores = torch.einsum("qhgd,khd->hgqk", grouped, k.float()) * scale
    visible = torch.ones(num_queries, num_keys, dtype=torch.bool, device=q.device)
    scores = scores.masked_fill(~visible.tril(diagonal), -torch.inf)
    weights = scores.softmax(-1).nan_to_num(0.0)  # a row without keys is 0 / 0
    if lse is not None:
        lse.copy_(scores.logsumexp(-1).permute(2, 0, 1).reshape(num_queries, num_heads))
    out = torch.einsum("hgqk,khd->qhgd", weights, v.float())
    return out.reshape(num_queries, num_heads, value_dim).to(q.dtype)


def paged_attention(q: Tensor, layer: KvLayer, batch: AttentionBatch, scale: float) -> Tensor:
    """Attend from q [T, H, D] to each sequence's cached keys and values -> [T, H, D].

    Decode rows and prefill chunks may be mixed; rows past the last sequence come back as zero.
    """
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    for rows, slots in _sequences(batch):
        k = load(layer.k, layer.k_scale, slots)
        v = load(layer.v, layer.v_scale, slots)
        out[rows] = dense_attention(q[rows], k, v, scale)
    return out


def latent_attention(
    q_latent: Tensor, q_rope: Tensor, layer: LatentLayer, batch: AttentionBatch, scale: float
) -> Tensor:
    """Attend in the latent space (absorbed MLA): q_latent [T, H, R], q_rope [T, H, P] -> [T, H, R].

    scores = (q_latent . c + q_rope . k_rope) * scale, output = softmax(scores) c, where c is the
    cached latent shared by all heads. Source: DeepSeek-V2, section 2.1.
    """
    out = torch.zeros_like(q_latent, memory_format=torch.contiguous_format)
    q = torch.cat([q_latent, q_rope], dim=-1)
    for rows, slots in _sequences(batch):
        latent = load(layer.latent, layer.scale, slots)
        k = torch.cat([latent, load(layer.rope, None, slots)], dim=-1)
        out[rows] = dense_attention(q[rows], k.unsqueeze(1), latent.unsqueeze(1), scale)
    return out


def _sequences(batch: AttentionBatch) -> list[tuple[slice, Tensor]]:
    """Return each non-empty sequence's rows in the flat batch and its slots in the cache."""
    found = []
    start = 0
    for index, (query_len, kv_len) in enumerate(
        zip(batch.host_query_lens, batch.host_kv_lens, strict=True)
    ):
        if query_len:
            slots = sequence_slots(batch.block_tables[index], kv_len, batch.block_size)
            found.append((slice(start, start + query_len), slots))
        start += query_len
    return found
