"""Sampling in one native call."""

import torch
from torch import Tensor

from dstune.kernels.native import lib
from dstune.kernels.native.arguments import rows


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """Draw one token per row: logits fp32 [B, V], all others [B] -> int64 [B]."""
    logits = rows(logits.float())
    temperature, top_p, min_p = (_as(t, torch.float32) for t in (temperature, top_p, min_p))
    top_k, seeds, positions = (_as(t, torch.int64) for t in (top_k, seeds, positions))
    batch, vocab = logits.shape
    out = torch.empty(batch, dtype=torch.int64)
    lib().sample(
        logits.data_ptr(), logits.stride(0), temperature.data_ptr(), top_k.data_ptr(),
        top_p.data_ptr(), min_p.data_ptr(), seeds.data_ptr(), positions.data_ptr(),
        out.data_ptr(), batch, vocab, torch.get_num_threads(),
    )  # fmt: skip
    return out


def _as(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype).contiguous()
