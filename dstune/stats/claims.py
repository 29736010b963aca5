"""Stats: what may be claimed about a promise at 95% confidence, given how many samples there are.

The number of requests over a limit is binomial. A promise "at most a share s is over" may be
claimed when so few over would come up in fewer than 5% of runs of a target at exactly s, and is
broken when so many would. Requests needed to claim a p99 with 0/1/2/5 over: 299/473/628/1049.
"""

from __future__ import annotations

from functools import lru_cache

from scipy import special

from dstune.measure.record import Claim

ALPHA = 0.05
_MOST = 10_000_000


def claim(num: int, num_over: int, allowed_share: float) -> Claim:
    """Whether `num_over` of `num` requests show that at most `allowed_share` is over."""
    if num == 0:
        return Claim.INCONCLUSIVE
    if special.bdtr(num_over, num, allowed_share) <= ALPHA:
        return Claim.PASS
    at_least = special.bdtrc(num_over - 1, num, allowed_share) if num_over else 1.0
    return Claim.FAIL if at_least <= ALPHA else Claim.INCONCLUSIVE


@lru_cache(maxsize=256)
def num_needed(num_over: int, allowed_share: float) -> int | None:
    """The fewest requests that claim a pass with `num_over` over; None when none do."""
    if special.bdtr(num_over, _MOST, allowed_share) > ALPHA:
        return None
    low, high = num_over, _MOST
    while high - low > 1:  # the probability falls with the number
        middle = (low + high) // 2
        if special.bdtr(num_over, middle, allowed_share) <= ALPHA:
            high = middle
        else:
            low = middle
    return high
