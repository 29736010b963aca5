"""DeepSeek's expert gates in one native call."""

import torch
from torch import Tensor

from dstune.kernels.native import lib
from dstune.kernels.native.arguments import pointer, rows


def gate_softmax(
    logits: Tensor,
    top_k: int,
    routed_scaling_factor: float,
    norm_topk_prob: bool,
    n_group: int = 1,
    topk_group: int = 1,
) -> tuple[Tensor, Tensor]:
    """Choose experts by softmax probability (V2); see the reference."""
    return _gate(
        logits, None, top_k, n_group, topk_group, False, norm_topk_prob, routed_scaling_factor
    )


def gate_sigmoid(
    logits: Tensor,
    bias: Tensor,
    top_k: int,
    n_group: int,
    topk_group: int,
    routed_scaling_factor: float,
    norm_topk_prob: bool,
) -> tuple[Tensor, Tensor]:
    """Choose experts by biased sigmoid score (V3, noaux_tc); see the reference."""
    return _gate(
        logits, bias.float().contiguous(), top_k, n_group, topk_group, True, norm_topk_prob,
        routed_scaling_factor,
    )  # fmt: skip


def _gate(
    logits: Tensor,
    bias: Tensor | None,
    top_k: int,
    n_group: int,
    topk_group: int,
    is_sigmoid: bool,
    normalise: bool,
    factor: float,
) -> tuple[Tensor, Tensor]:
    logits = rows(logits.float())
    num_tokens, num_experts = logits.shape
    weights = torch.empty(num_tokens, top_k, dtype=torch.float32)
    ids = torch.empty(num_tokens, top_k, dtype=torch.int64)
    lib().gate(
        logits.data_ptr(), logits.stride(0), pointer(bias), weights.data_ptr(), ids.data_ptr(),
        num_tokens, num_experts, top_k, n_group, topk_group, is_sigmoid, normalise, factor,
        torch.get_num_threads(),
    )  # fmt: skip
    return weights, ids
