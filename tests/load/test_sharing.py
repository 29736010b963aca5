"""What a plan shares on purpose: whole blocks that an earlier prompt began with."""

from __future__ import annotations

from dstune.load.plan import LoadPlan, PlannedRequest
from dstune.load.sharing import planned_shared_tokens


def plan(*prompts: tuple[int, ...]) -> LoadPlan:
    return LoadPlan(
        tuple(PlannedRequest(f"r{at}", 0, prompt, 1, seed=0) for at, prompt in enumerate(prompts))
    )


def test_only_whole_blocks_from_the_beginning_count() -> None:
    first = (1, 2, 3, 4, 5, 6, 7, 8, 9)
    shared = planned_shared_tokens(plan(first, first[:6], (1, 2, 3, 4, 5, 6, 7, 0)), 4)
    assert shared == {"r1": 4, "r2": 4}


def test_a_block_in_the_middle_shares_nothing() -> None:
    assert planned_shared_tokens(plan((1, 2, 3, 4, 5, 6), (9, 9, 3, 4, 5, 6)), 2) == {}


def test_a_block_after_a_difference_is_not_counted() -> None:
    shared = planned_shared_tokens(plan((1, 2, 3, 4), (1, 2, 0, 0), (1, 2, 0, 0, 3, 4)), 2)
    assert shared == {"r1": 2, "r2": 4}


def test_an_equal_prompt_shares_all_its_whole_blocks() -> None:
    assert planned_shared_tokens(plan((1, 2, 3), (1, 2, 3)), 2) == {"r1": 2}
