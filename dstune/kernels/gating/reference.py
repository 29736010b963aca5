"""DeepSeek's expert gates in plain torch.

Source: modeling_deepseek.py of DeepSeek-V2 and DeepSeek-V3 (MoEGate). Among equal scores the
lowest expert id wins, so that backends agree.
"""

import torch
from torch import Tensor


def gate_softmax(
    logits: Tensor,
    top_k: int,
    routed_scaling_factor: float,
    norm_topk_prob: bool,
    n_group: int = 1,
    topk_group: int = 1,
) -> tuple[Tensor, Tensor]:
    """Choose experts by softmax probability (V2): (weights fp32 [T, k], ids int64 [T, k]).

    logits fp32 [T, E]. With n_group > 1 (group_limited_greedy) only the topk_group groups with
    the largest single probability compete. V2 scales its weights only when it does not normalise.
    """
    scores = logits.float().softmax(-1)
    choice = scores
    if n_group > 1:
        group_scores = scores.unflatten(1, (n_group, -1)).amax(-1)
        choice = scores.masked_fill(~_group_mask(group_scores, topk_group, scores.shape[1]), 0.0)
    ids = _top_k(choice, top_k)
    weights = scores.gather(1, ids)
    if norm_topk_prob and top_k > 1:
        return weights / (weights.sum(-1, keepdim=True) + 1e-20), ids
    return weights * routed_scaling_factor, ids


def gate_sigmoid(
    logits: Tensor,
    bias: Tensor,
    top_k: int,
    n_group: int,
    topk_group: int,
    routed_scaling_factor: float,
    norm_topk_prob: bool,
) -> tuple[Tensor, Tensor]:
    """Choose experts by biased sigmoid score (V3, noaux_tc): (weights [T, k], ids int64 [T, k]).

    logits fp32 [T, E], bias [E]. A group's score is the sum of its two best biased scores. The
    bias steers the choice only: the weights come from the plain scores.
    """
    scores = logits.float().sigmoid()
    choice = scores + bias.float()
    if n_group > 1:
        grouped = choice.unflatten(1, (n_group, -1))
        group_scores = grouped.topk(min(2, grouped.shape[-1]), dim=-1).values.sum(-1)
        mask = _group_mask(group_scores, topk_group, choice.shape[1])
        choice = choice.masked_fill(~mask, -torch.inf)
    ids = _top_k(choice, top_k)
    weights = scores.gather(1, ids)
    if norm_topk_prob:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return weights * routed_scaling_factor, ids


def _group_mask(group_scores: Tensor, topk_group: int, num_experts: int) -> Tensor:
    """Return bool [T, E]: whether an expert's group is among the best topk_group."""
    mask = torch.zeros_like(group_scores, dtype=torch.bool)
    mask.scatter_(1, _top_k(group_scores, topk_group), True)
    return mask.repeat_interleave(num_experts // group_scores.shape[1], dim=1)


def _top_k(scores: Tensor, k: int) -> Tensor:
    """Return the ids of the k largest, best first; a stable sort, so equal scores keep id order."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[:, :k]
