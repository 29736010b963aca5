"""DeepSeek's expert gates as a Triton kernel: a token a warp.

Scores are ranked by integers that order as the floats do, so that a tie is a tie: the first of
the largest wins, which is the lowest id.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from dstune.kernels.launch import launch, next_power_of_2
from dstune.kernels.native.arguments import rows

LOWEST = tl.constexpr(-(2**31))  # a key below every number's


def gate_softmax(
    logits: Tensor,
    top_k: int,
    routed_scaling_factor: float,
    norm_topk_prob: bool,
    n_group: int = 1,
    topk_group: int = 1,
) -> tuple[Tensor, Tensor]:
    """Choose experts by softmax probability (V2); see the reference."""
    normalise = norm_topk_prob and top_k > 1
    # V2 scales its weights only when it does not normalise.
    factor = 1.0 if normalise else routed_scaling_factor
    return _gate(logits, None, top_k, (n_group, topk_group), factor, normalise)


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
    groups = (n_group, topk_group)
    return _gate(logits, bias.contiguous(), top_k, groups, routed_scaling_factor, norm_topk_prob)


def _gate(
    logits: Tensor,
    bias: Tensor | None,
    top_k: int,
    groups: tuple[int, int],
    factor: float,
    normalise: bool,
) -> tuple[Tensor, Tensor]:
    """Choose by sigmoid and bias where there is a bias, else by softmax."""
    logits = rows(logits)
    num_tokens, num_experts = logits.shape
    weights = torch.empty(num_tokens, top_k, dtype=torch.float32, device=logits.device)
    ids = torch.empty(num_tokens, top_k, dtype=torch.int64, device=logits.device)
    size = num_experts // groups[0]
    launch(
        _gate_kernel, (num_tokens,),
        logits, logits if bias is None else bias, weights, ids, logits.stride(0),
        SIGMOID=bias is not None, TOP_K=top_k, TOP_K_BLOCK=next_power_of_2(top_k),
        GROUPS=groups[0], GROUPS_BLOCK=next_power_of_2(groups[0]), TOP_GROUPS=groups[1],
        SIZE=size, SIZE_BLOCK=next_power_of_2(size), FACTOR=factor, NORMALISE=normalise,
        num_warps=1,
    )  # fmt: skip
    return weights, ids


@triton.jit
def ordered_key(x):
    """Return int32 that order as fp32 x do; NaN is the largest, as in torch's sort."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)  # the addition makes one zero of two
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return tl.where(x == x, key, 0x7FFFFFFF)


@triton.jit
def from_key(key):
    """Return the fp32 of a key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _in_best_groups(
    key, TOP_GROUPS: tl.constexpr, GROUPS: tl.constexpr, GROUPS_BLOCK: tl.constexpr,
    SIZE: tl.constexpr, SIZE_BLOCK: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Return whether a group is among the best TOP_GROUPS, int32 [GROUPS_BLOCK, 1].

    key [GROUPS_BLOCK, SIZE_BLOCK]. A group's score is its best one's or, PAIRS, its best two's sum.
    """
    group = tl.arange(0, GROUPS_BLOCK)
    best, at = tl.max(key, axis=1, return_indices=True)
    if PAIRS and SIZE > 1:
        place = tl.arange(0, SIZE_BLOCK)[None, :]
        second = tl.max(tl.where(place == at[:, None], LOWEST, key), axis=1)
        best = ordered_key(from_key(best) + from_key(second))
    best = tl.where(group < GROUPS, best, LOWEST)
    chosen = tl.zeros((GROUPS_BLOCK,), tl.int32)
    for _ in range(TOP_GROUPS):
        winner = tl.argmax(best, axis=0)
        chosen = tl.where(group == winner, 1, chosen)
        best = tl.where(group == winner, LOWEST, best)
    return chosen[:, None]


@triton.jit
def _gate_kernel(
    logits, bias, weights, ids, stride,
    SIGMOID: tl.constexpr, TOP_K: tl.constexpr, TOP_K_BLOCK: tl.constexpr,
    GROUPS: tl.constexpr, GROUPS_BLOCK: tl.constexpr, TOP_GROUPS: tl.constexpr,
    SIZE: tl.constexpr, SIZE_BLOCK: tl.constexpr, FACTOR: tl.constexpr, NORMALISE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, GROUPS_BLOCK)[:, None]
    place = tl.arange(0, SIZE_BLOCK)[None, :]
    expert = group * SIZE + place
    inside = (group < GROUPS) & (place < SIZE)
    x = tl.load(logits + token * stride + expert, mask=inside, other=-float("inf"))
    x = x.to(tl.float32)
    if SIGMOID:
        power = tl.exp(-tl.abs(x))
        scores = tl.div_rn(tl.where(x < 0, power, 1.0), 1.0 + power)
        choice = scores + tl.load(bias + expert, mask=inside, other=0.0).to(tl.float32)
    else:
        powers = tl.exp(x - tl.max(tl.max(x, axis=1), axis=0))
        scores = tl.div_rn(powers, tl.sum(tl.sum(powers, axis=1), axis=0))
        choice = scores
    key = tl.where(inside, ordered_key(choice), LOWEST)
    if GROUPS > 1:
        chosen = _in_best_groups(
            key, TOP_GROUPS, GROUPS, GROUPS_BLOCK, SIZE, SIZE_BLOCK, SIGMOID
        )  # fmt: skip
        # Losers keep a place behind the others: V3 masks them with -inf, V2 with 0.
        masked = ordered_key(tl.full(choice.shape, -float("inf") if SIGMOID else 0.0, tl.float32))
        key = tl.where(inside & (chosen == 0), masked, key)
    # Padding stands last in its group only; flattened order is still the order of ids.
    lane = tl.arange(0, GROUPS_BLOCK * SIZE_BLOCK)
    key = tl.reshape(key, (GROUPS_BLOCK * SIZE_BLOCK,))
    scores = tl.reshape(scores, (GROUPS_BLOCK * SIZE_BLOCK,))
    rank = tl.arange(0, TOP_K_BLOCK)
    best_scores = tl.zeros((TOP_K_BLOCK,), tl.float32)
    best_ids = tl.zeros((TOP_K_BLOCK,), tl.int32)
    for i in range(TOP_K):
        at = tl.argmax(key, axis=0)
        score = tl.sum(tl.where(lane == at, scores, 0.0), axis=0)
        best_scores = tl.where(rank == i, score, best_scores)
        best_ids = tl.where(rank == i, at // SIZE_BLOCK * SIZE + at % SIZE_BLOCK, best_ids)
        key = tl.where(lane == at, LOWEST, key)
    if NORMALISE:
        best_scores = tl.div_rn(best_scores, tl.sum(best_scores, axis=0) + 1e-20)
    best_scores = best_scores * FACTOR
    tl.store(weights + token * TOP_K + rank, best_scores, mask=rank < TOP_K)
    tl.store(ids + token * TOP_K + rank, best_ids.to(tl.int64), mask=rank < TOP_K)
