"""Attention on Triton kernels: each sequence goes to the kernel made for its number of queries."""

import torch
from torch import Tensor

from dstune.kernels.attention.triton_decode import decode
from dstune.kernels.attention.triton_flash import dense_attention, paged_prefill
from dstune.kernels.attention.triton_latent import latent_attention
from dstune.kernels.batch import AttentionBatch
from dstune.kernels.cache import KvLayer
from dstune.kernels.native.arguments import rows

__all__ = ["dense_attention", "latent_attention", "paged_attention"]


def paged_attention(q: Tensor, layer: KvLayer, batch: AttentionBatch, scale: float) -> Tensor:
    """Attend from q [T, H, D] to each sequence's cache -> [T, H, D]; see the reference.

    Leading sequences with one query each are decoded, the others are chunks of prompts.
    """
    q = rows(q)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    query_lens = batch.host_query_lens
    total = sum(query_lens)
    if total < len(q):
        out[total:].zero_()
    num_decodes = next((i for i, n in enumerate(query_lens) if n != 1), len(query_lens))
    decode(q, layer, batch, scale, num_decodes, out)
    if total > num_decodes:
        paged_prefill(q, layer, batch, scale, num_decodes, out)
    return out
