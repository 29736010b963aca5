"""The filters of sampling, min_p, top_k and top_p, as searches for a threshold.

Nothing is sorted. Logits are compared as integers that order as the floats do; a bisection over
them finds the logit at which top_k or top_p cuts, and stops as soon as no other cut is possible.
So that its steps need not read the whole row, what can still be kept is first copied to a
scratch row: the best of every lane give a lower bound for the cut, and where no more than a tile
lies above it, three passes over the vocabulary are all. A row without filters costs nothing here.

Shares are sums of whole numbers, exp(logit - max) in units of 2^-44: such sums are exact in any
order, on any device, and their error against the reference's fp64 shares is what fp32's exp has,
about 2e-7 of the total, and at most 2^-26 for what is too small to count. A draw can differ from
the reference's only where a cut falls within that, and then by one token at the cut.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from dstune.kernels.gating.triton import LOWEST, from_key, ordered_key

MAX_VOCAB = 2**18  # a lane's sum of at most 64 halves stays in 32 bits, a row's in 64
HALF_UNIT = tl.constexpr(2.0**22)  # shares are held as two int32, of 22 bits each
LARGEST = tl.constexpr(3.4028234663852886e38)  # stands for inf, which has no differences
HIGHEST = tl.constexpr(2**31 - 1)  # a key above every number's
VALUE_STEPS = tl.constexpr(12)  # of a bisection by values, before it goes on by keys


@triton.jit
def scaled(row, at, length, temperature, floor, top):
    """Return logits by the temperature, fp32; -inf for NaN, padding, and what min_p drops."""
    logit = tl.load(row + at, mask=at < length, other=-float("inf")).to(tl.float32)
    value = tl.div_rn(logit, temperature)
    return tl.where(value - top >= floor, tl.minimum(value, LARGEST), -float("inf"))


@triton.jit
def _extremes(row, length, temperature, BLOCK: tl.constexpr):
    """Return the largest scaled logit of each lane, and of all the smallest above -inf."""
    most = tl.full((BLOCK,), -float("inf"), tl.float32)
    least = tl.full((BLOCK,), float("inf"), tl.float32)
    for start in range(0, length, BLOCK):
        value = scaled(row, start + tl.arange(0, BLOCK), length, temperature, -float("inf"), 0.0)
        most = tl.maximum(most, value)
        least = tl.where(value > -float("inf"), tl.minimum(least, value), least)
    return most, tl.min(least, axis=0)


@triton.jit
def _share_halves(value, top):
    """Return exp(value - top), at most 1, as its first and its next 22 bits, int32."""
    share = tl.exp(value - top) * HALF_UNIT
    high = share.to(tl.int32)
    return high, ((share - high.to(tl.float32)) * HALF_UNIT).to(tl.int32)


@triton.jit
def _joined(high, low):
    """Return a share of two halves, or of sums of them, int64."""
    return high.to(tl.int64) * (1 << 22) + low.to(tl.int64)


@triton.jit
def _share(value, top):
    """Return exp(value - top) in units of shares, int64."""
    high, low = _share_halves(value, top)
    return _joined(high, low)


@triton.jit
def _above(row, length, temperature, floor, top, key, BLOCK: tl.constexpr):
    """Return how many logits lie above a key, and their share; the key of the least of them less 1,
    and the key of the largest of the others: between these two nothing lies.
    """
    count = tl.zeros((BLOCK,), tl.int32)
    least = tl.full((BLOCK,), HIGHEST, tl.int32)
    largest = tl.full((BLOCK,), LOWEST, tl.int32)
    high = tl.zeros((BLOCK,), tl.int32)
    low = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, length, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = scaled(row, at, length, temperature, floor, top)
        order = ordered_key(value)
        is_above = order > key
        least = tl.minimum(least, tl.where(is_above, order, HIGHEST))
        largest = tl.maximum(largest, tl.where(is_above, LOWEST, order))
        share_high, share_low = _share_halves(value, top)
        count += is_above.to(tl.int32)
        high += tl.where(is_above, share_high, 0)
        low += tl.where(is_above, share_low, 0)
    share = tl.sum(_joined(high, low), axis=0)
    return tl.sum(count, axis=0), share, tl.min(least, axis=0) - 1, tl.max(largest, axis=0)


@triton.jit
def _between(low, high, step):
    """Return a key above low and below high: by value in the first steps, then halfway."""
    by_value = ordered_key(from_key(low) * 0.5 + from_key(high) * 0.5)
    halfway = (low & high) + ((low ^ high) >> 1)
    is_useful = (step < VALUE_STEPS) & (by_value > low) & (by_value < high)
    return tl.where(is_useful, by_value, halfway)


@triton.jit
def _lower_bound(most, floor, top, low, high, num_wanted, share_wanted):
    """Return a key, at least low, above which num_wanted logits lie that have share_wanted.

    Looks at the best of each lane only, most [BLOCK]. Any key is right that still has them, so
    the bisection stops when it is near; below `high`, the key of the largest.
    """
    key = tl.where(most - top >= floor, ordered_key(most), low)
    step = 0
    while (step < 28) & (low + 1 < high):
        middle = _between(low, high, step)
        count = tl.sum((key > middle).to(tl.int32), axis=0)
        share = tl.where(key > middle, _share(from_key(key), top), 0)
        reached = tl.sum(share, axis=0).to(tl.float64)
        step += 1
        if (count >= num_wanted) & (reached >= share_wanted):
            low = middle
        else:
            high = middle
    return low


@triton.jit
def _copy_above(
    row, length, temperature, floor, top, key, values, ids, BLOCK: tl.constexpr
):  # fmt: skip
    """Copy scaled logits above a key, and their places, in order; return how many there are.

    At most BLOCK are copied.
    """
    count = 0
    for start in range(0, length, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = scaled(row, at, length, temperature, floor, top)
        is_above = ordered_key(value) > key
        place = count + tl.cumsum(is_above.to(tl.int32), axis=0) - 1
        fits = is_above & (place < BLOCK)
        tl.store(values + place, value, mask=fits)
        tl.store(ids + place, at, mask=fits)
        count += tl.sum(is_above.to(tl.int32), axis=0)
    tl.debug_barrier()  # other threads read what these wrote
    return count


@triton.jit
def _cut_by_count(
    row, length, temperature, floor, top, low, high, count, num_kept, BLOCK: tl.constexpr
):  # fmt: skip
    """Find where the num_kept best end; `count`, no fewer, lie above key low, none above high.

    Returns (key, ties): kept is what lies above the key, and the first `ties` equal to it.
    """
    ties = 0
    above_high = 0
    step = 0
    while (count != num_kept) & (low + 1 < high):
        middle = _between(low, high, step)
        count, _, up, down = _above(row, length, temperature, floor, top, middle, BLOCK)
        step += 1
        if count >= num_kept:
            low = up
        else:
            high = down
            above_high = count
    if count != num_kept:  # equal logits, cut in the order of their ids
        low = high
        ties = num_kept - above_high
    return low, ties


@triton.jit
def _cut_by_share(
    row, length, temperature, floor, top, key, ties, high, num_kept, limit, BLOCK: tl.constexpr
):  # fmt: skip
    """Find where a share is reached among the num_kept that (key, ties) keep: a new (key, ties).

    A logit stays if the share of what stands before it is less than the limit. Invariant: what
    lies above `low` has that share, what lies above `high` has not.
    """
    low = key - (ties > 0).to(tl.int32)
    start = low
    num_low = num_kept
    num_high = 0
    share_high = tl.zeros((), tl.int64)
    step = 0
    while (num_low - num_high > 1) & (low + 1 < high):
        middle = _between(low, high, step)
        count, share, up, down = _above(row, length, temperature, floor, top, middle, BLOCK)
        step += 1
        if share.to(tl.float64) < limit:
            high = down
            num_high = count
            share_high = share
        else:
            low = up
            num_low = count
    if num_low - num_high > 1:  # equal logits, cut in the order of their ids
        one = _share(from_key(high), top)
        wanted = (limit - share_high.to(tl.float64)) / one.to(tl.float64)
        new_ties = tl.minimum(wanted, (num_low - num_high).to(tl.float64)).to(tl.int32)
        reached = (share_high + new_ties * one).to(tl.float64) >= limit
        new_ties = tl.minimum(tl.where(reached, new_ties, new_ties + 1), num_low - num_high)
        new_key = high
    else:  # one at most lies between them, and it stays
        new_key = tl.where(low == start, key, low)
        new_ties = tl.where(low == start, ties, 0)
    return new_key, new_ties


@triton.jit
def _last_tie(row, length, temperature, floor, top, key, ties, BLOCK: tl.constexpr):
    """Return the place of the ties-th logit that equals a key, or -1."""
    last = tl.full((BLOCK,), -1, tl.int32)
    before = 0
    for start in range(0, length, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = scaled(row, at, length, temperature, floor, top)
        is_tie = (ordered_key(value) == key).to(tl.int32)
        rank = before + tl.cumsum(is_tie, axis=0)
        last = tl.where((is_tie == 1) & (rank <= ties), at, last)
        before += tl.sum(is_tie, axis=0)
    return tl.max(last, axis=0)


@triton.jit
def filter_kernel(
    logits, temperatures, top_ks, top_ps, min_ps, scratch, scratch_ids, cuts, limits,
    stride, vocab, BLOCK: tl.constexpr,
):  # fmt: skip
    """Find what the filters keep of a row: where its logits lie, and where they are cut."""
    index = tl.program_id(0).to(tl.int64)
    row = logits + index * stride
    length = vocab
    temperature = tl.load(temperatures + index).to(tl.float32)
    top_k = tl.minimum(tl.load(top_ks + index).to(tl.int64), vocab).to(tl.int32)
    top_p = tl.load(top_ps + index).to(tl.float32)
    min_p = tl.load(min_ps + index).to(tl.float32)
    key = LOWEST  # nothing is dropped
    last_tie = -1
    num_copied = 0  # the whole row
    floor = -float("inf")
    top = 0.0
    has_top_k = (top_k > 0) & (top_k < vocab)
    if (temperature > 0) & (has_top_k | (top_p < 1) | (min_p > 0)):
        most, least = _extremes(row, length, temperature, BLOCK)
        top = tl.maximum(tl.max(most, axis=0), -LARGEST)
        if min_p > 0:
            floor = tl.log(min_p)
        if least < float("inf"):  # there is a number
            high = ordered_key(top)
            key = ordered_key(least) - 1
            count, share, _, _ = _above(row, length, temperature, floor, top, key, BLOCK)
            limit = tl.maximum(top_p, 0.0).to(tl.float64) * share.to(tl.float64)
            has_top_k = has_top_k & (count > top_k)
            if length > BLOCK:
                if has_top_k | (top_p < 1):
                    num_wanted = tl.where(has_top_k, top_k, 0)
                    share_wanted = tl.where(has_top_k, 0.0, limit)
                    key = _lower_bound(most, floor, top, key, high, num_wanted, share_wanted)
                copy = scratch + index * BLOCK
                count = _copy_above(
                    row, length, temperature, floor, top, key, copy,
                    scratch_ids + index * BLOCK, BLOCK,
                )  # fmt: skip
                if count <= BLOCK:
                    row, length, num_copied = copy, count, count
                    temperature, floor = 1.0, -float("inf")
            ties = 0
            if has_top_k:
                key, ties = _cut_by_count(
                    row, length, temperature, floor, top, key, high, count, top_k, BLOCK
                )
                count = top_k
                _, share, _, _ = _above(row, length, temperature, floor, top, key, BLOCK)
                share += ties * _share(from_key(key), top)
                limit = tl.maximum(top_p, 0.0).to(tl.float64) * share.to(tl.float64)
            if top_p < 1:
                limit = tl.maximum(limit, 1.0)  # the best always stays
                key, ties = _cut_by_share(
                    row, length, temperature, floor, top, key, ties, high, count, limit, BLOCK
                )
            if ties > 0:
                last_tie = _last_tie(row, length, temperature, floor, top, key, ties, BLOCK)
    tl.store(cuts + index * 3, key)
    tl.store(cuts + index * 3 + 1, last_tie)
    tl.store(cuts + index * 3 + 2, num_copied)
    tl.store(limits + index * 2, floor)
    tl.store(limits + index * 2 + 1, top)
