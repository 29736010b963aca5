"""Load: how much of each prompt a plan itself makes equal to an earlier one's beginning.

Prefix hits beyond that come from elsewhere, from an earlier run above all.
"""

from __future__ import annotations

from collections.abc import Mapping

from dstune.load.plan import LoadPlan


def planned_shared_tokens(plan: LoadPlan, block_tokens: int) -> Mapping[str, int]:
    """The most tokens of each request, by id, that a cache of whole blocks may hold already.

    Requests that share nothing are left out.
    """
    seen: set[int] = set()
    shared: dict[str, int] = {}
    for request in plan.requests:
        ids = request.prompt_token_ids
        chain, num_known, is_known = 0, 0, True
        for start in range(0, len(ids) - block_tokens + 1, block_tokens):
            chain = hash((chain, ids[start : start + block_tokens]))
            is_known = is_known and chain in seen
            num_known += block_tokens if is_known else 0
            seen.add(chain)
        if num_known:
            shared[request.request_id] = num_known
    return shared
