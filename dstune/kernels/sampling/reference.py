"""Sampling in plain torch, and the definition of the random numbers that every backend draws.

Gumbel-max: argmax(logit / temperature + g) is a sample of the softmax when the g are independent
Gumbel variables. Here g is a hash of (seed, position, vocabulary id), so a draw never depends on
the row of the batch or on who shares it, needs no state, and can be repeated.
"""

import torch
from torch import Tensor

MASK32 = 0xFFFFFFFF
MASK64 = (1 << 64) - 1


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """Draw one token per row: logits fp32 [B, V], all others [B] -> int64 [B].

    Temperature 0 is the argmax; the lowest id wins ties, everywhere. Otherwise, after dividing by
    the temperature, the filters apply in this order: min_p keeps p >= min_p * max p; top_k keeps
    the k best (0 = off); top_p keeps the fewest best whose share of what is left reaches top_p
    (1 = off).
    """
    rows = [
        _sample_row(
            row,
            float(temperature[i]),
            int(top_k[i]),
            float(top_p[i]),
            float(min_p[i]),
            (int(seeds[i]), int(positions[i])),
        )
        for i, row in enumerate(logits)
    ]
    return torch.tensor(rows, dtype=torch.int64, device=logits.device)


def _sample_row(
    logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float, key: tuple[int, int]
) -> int:
    if temperature <= 0:
        return _lowest_argmax(logits)
    # A stable sort keeps equal logits in id order, so the filters cut ties the same way everywhere.
    ordered, ids = (logits.float() / temperature).sort(descending=True, stable=True)
    keep = torch.ones_like(ids, dtype=torch.bool)
    if min_p > 0:
        keep &= ordered - ordered[0] >= torch.log(torch.tensor(min_p))
    if top_k > 0:
        keep[top_k:] = False
    if top_p < 1:
        shares = ordered.masked_fill(~keep, -torch.inf).double().softmax(-1)
        keep &= shares.cumsum(-1) - shares < top_p  # what stands before it has not reached top_p
        keep[0] = True
    kept, ids = ordered[keep], ids[keep]
    ids, order = ids.sort()
    scores = kept[order] + gumbel(*key, ids)
    return int(ids[_lowest_argmax(scores)])


def gumbel(seed: int, position: int, ids: Tensor) -> Tensor:
    """Return the Gumbel variables of vocabulary ids int64 [n] at (seed, position), fp32 [n]."""
    key = mix64(mix64(seed) ^ (position & MASK64))
    bits = _mix32(_mix32((ids + (key & MASK32)) & MASK32) ^ (key >> 32))
    uniform = ((bits >> 9).float() + 0.5) * 2.0**-23  # exact in fp32, never 0 or 1
    return -torch.log(-torch.log(uniform))


def mix64(x: int) -> int:
    """Mix 64 bits; the finaliser of splitmix64 (Steele et al. 2014)."""
    x = (x + 0x9E3779B97F4A7C15) & MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


def _mix32(x: Tensor) -> Tensor:
    """Mix 32 bits held in int64; lowbias32 of Wellons' hash prospector."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & MASK32
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & MASK32
    return x ^ (x >> 16)


def _lowest_argmax(values: Tensor) -> int:
    return int((values == values.max()).nonzero()[0])
