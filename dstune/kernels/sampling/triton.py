"""Sampling as two Triton kernels, a row a program: one finds what the filters keep, one draws."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import torch
import triton
import triton.language as tl
from torch import Tensor

from dstune.errors import UsageError
from dstune.kernels.gating.triton import ordered_key
from dstune.kernels.launch import launch, next_power_of_2
from dstune.kernels.native.arguments import rows
from dstune.kernels.sampling.triton_filter import MAX_VOCAB, filter_kernel, scaled

NO_ID = tl.constexpr(2**31 - 1)
_BLOCK = 4096  # with 16 warps: 8 logits a thread, two 16-byte loads


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """Draw one token per row: logits fp32 [B, V], all others [B] -> int64 [B]; see the reference.

    NaN is never drawn; a row without a number above -inf yields 0.
    """
    logits = rows(logits.float())
    batch, vocab = logits.shape
    if vocab > MAX_VOCAB:
        raise UsageError(f"sampling knows vocabularies up to {MAX_VOCAB}, not {vocab}")
    out = torch.empty(batch, dtype=torch.int64, device=logits.device)
    block = min(next_power_of_2(vocab), _BLOCK)
    scratch = torch.empty(batch, block, dtype=torch.float32, device=logits.device)
    scratch_ids = torch.empty(batch, block, dtype=torch.int32, device=logits.device)
    cuts = torch.empty(batch, 3, dtype=torch.int32, device=logits.device)
    limits = torch.empty(batch, 2, dtype=torch.float32, device=logits.device)
    temperature, num_warps = temperature.contiguous(), max(1, block // 256)
    launch(
        filter_kernel, (batch,),
        logits, temperature, top_k.contiguous(), top_p.contiguous(), min_p.contiguous(),
        scratch, scratch_ids, cuts, limits, logits.stride(0), vocab,
        BLOCK=block, num_warps=num_warps,
    )  # fmt: skip
    launch(
        _draw, (batch,),
        logits, temperature, seeds.contiguous(), positions.contiguous(), out,
        scratch, scratch_ids, cuts, limits, logits.stride(0), vocab,
        BLOCK=block, num_warps=num_warps,
    )  # fmt: skip
    return out


@triton.jit
def _mix64(x):
    """Mix 64 bits; the finaliser of splitmix64 (Steele et al. 2014)."""
    x = x + 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _mix32(x):
    """Mix 32 bits; lowbias32 of Wellons' hash prospector."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _gumbel(noise_key, ids):
    """Return the Gumbel variables of vocabulary ids int32 under a mixed key uint64, fp32."""
    low, high = noise_key.to(tl.uint32), (noise_key >> 32).to(tl.uint32)
    bits = _mix32(_mix32(ids.to(tl.uint32) + low) ^ high)
    uniform = ((bits >> 9).to(tl.int32).to(tl.float32) + 0.5) * 1.1920928955078125e-07  # 2^-23
    return -tl.log(-tl.log(uniform))


@triton.jit
def _best(
    row, length, temperature, floor, top, key, last_tie, noise_key, ids, COPIED: tl.constexpr,
    is_noisy, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the id of the best of what is kept, the lowest among equals.

    Places in a copy have their vocabulary ids at `ids`; in a whole row they are the ids.
    """
    best = tl.full((BLOCK,), -float("inf"), tl.float32)
    best_id = tl.full((BLOCK,), NO_ID, tl.int32)
    for start in range(0, length, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = scaled(row, at, length, temperature, floor, top)
        vocabulary_id = at
        if COPIED:
            vocabulary_id = tl.load(ids + at, mask=at < length, other=0)
        order = ordered_key(value)
        is_kept = (order > key) | ((order == key) & (at <= last_tie))
        if is_noisy:
            value += _gumbel(noise_key, vocabulary_id)
        value = tl.where(is_kept, value, -float("inf"))
        is_better = value > best  # later ids of a lane are larger, so equality changes nothing
        best = tl.where(is_better, value, best)
        best_id = tl.where(is_better, vocabulary_id, best_id)
    winner = tl.min(tl.where(best == tl.max(best, axis=0), best_id, NO_ID), axis=0)
    return tl.where(winner == NO_ID, 0, winner)


@triton.jit
def _draw(
    logits, temperatures, seeds, positions, out, scratch, scratch_ids, cuts, limits,
    stride, vocab, BLOCK: tl.constexpr,
):  # fmt: skip
    """Draw from what `filter_kernel` found, the best without noise at temperature 0."""
    index = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + index).to(tl.float32)
    is_noisy = temperature > 0
    seed = tl.load(seeds + index).to(tl.int64).to(tl.uint64, bitcast=True)
    position = tl.load(positions + index).to(tl.int64).to(tl.uint64, bitcast=True)
    noise_key = _mix64(_mix64(seed) ^ position)
    key, last_tie = tl.load(cuts + index * 3), tl.load(cuts + index * 3 + 1)
    num_copied = tl.load(cuts + index * 3 + 2)
    floor, top = tl.load(limits + index * 2), tl.load(limits + index * 2 + 1)
    ids = scratch_ids + index * BLOCK
    if num_copied > 0:
        token = _best(
            scratch + index * BLOCK, num_copied, 1.0, floor, top, key, last_tie, noise_key,
            ids, True, is_noisy, BLOCK,
        )  # fmt: skip
    else:
        token = _best(
            logits + index * stride, vocab, tl.where(is_noisy, temperature, 1.0), floor, top, key,
            last_tie, noise_key, ids, False, is_noisy, BLOCK,
        )  # fmt: skip
    tl.store(out + index, token.to(tl.int64))
