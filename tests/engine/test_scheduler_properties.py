"""Random arrivals, aborts, preemptions and shared prefixes against scheduler and block manager.

A model is not needed: the "computed" cache is a shadow that remembers which tokens each slot was
written for, so a wrongly shared or reused block shows as a mismatch.
"""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dstune.engine.blocks import BlockManager
from dstune.engine.config import EngineConfig
from dstune.engine.request import Request, SamplingParams
from dstune.engine.scheduler import Scheduler, StepPlan

PREFIXES = (tuple(range(100, 164)), tuple(range(100, 130)) + tuple(range(500, 534)))
MAX_MODEL_LEN = 96


@st.composite
def request_specs(draw: st.DrawFn) -> tuple[tuple[int, ...], int, int, int | None]:
    """(prompt, max_tokens, step of arrival, step of abort or None)."""
    shared = draw(st.sampled_from(PREFIXES))[: draw(st.integers(0, 64))]
    own = tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=20)))
    arrival = draw(st.integers(0, 30))
    abort = draw(st.one_of(st.none(), st.none(), st.integers(0, 40)))
    return (shared + own, draw(st.integers(1, 24)), arrival, abort)


class Shadow:
    """What each slot of the cache holds: the whole token prefix up to and with that slot."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.slots: dict[int, tuple[int, ...]] = {}

    def compute(self, plan: StepPlan) -> list[int]:
        """Checks what each share reads, writes what it computes, and returns new tokens."""
        tokens = []
        for one in plan.scheduled:
            request = one.request
            stop = one.start + one.num_tokens
            for position in range(one.start, stop):
                self.slots[self._slot(request, position)] = tuple(request.token_ids[: position + 1])
            for position in range(stop):
                held = self.slots.get(self._slot(request, position))
                assert held == tuple(request.token_ids[: position + 1]), "reads another's KV"
            if one.yields_token:
                tokens.append(hash(tuple(request.token_ids)) % 7)
        return tokens

    def _slot(self, request: Request, position: int) -> int:
        block, offset = divmod(position, self.block_size)
        return request.block_table[block] * self.block_size + offset


def check_blocks(scheduler: Scheduler) -> None:
    """References match tables exactly; free and used blocks partition the cache."""
    blocks = scheduler.blocks
    held = Counter(block for request in scheduler.running for block in request.block_table)
    assert [held[block] for block in range(blocks.num_blocks)] == blocks._references
    assert set(blocks._free) == {b for b in range(blocks.num_blocks) if held[b] == 0}
    for request in scheduler.waiting:
        assert request.block_table == [] and request.num_computed_tokens == 0
    for block, count in held.items():
        if count > 1:
            assert block in blocks._hash_of, "only committed blocks may be shared"


@settings(max_examples=250, deadline=None)
@given(
    specs=st.lists(request_specs(), min_size=1, max_size=14),
    block_size=st.sampled_from([8, 16, 32]),
    spare_blocks=st.integers(0, 6),
    max_num_seqs=st.integers(1, 6),
    extra_budget=st.integers(0, 60),
    has_cache=st.booleans(),
    is_chunked=st.booleans(),
    timeout_steps=st.integers(0, 3),
)
def test_blocks_budget_and_progress(
    specs: list[tuple[tuple[int, ...], int, int, int | None]],
    block_size: int,
    spare_blocks: int,
    max_num_seqs: int,
    extra_budget: int,
    has_cache: bool,
    is_chunked: bool,
    timeout_steps: int,
) -> None:
    budget = max_num_seqs + extra_budget if is_chunked else MAX_MODEL_LEN + extra_budget
    config = EngineConfig.from_knobs(
        {
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": budget,
            "block_size": block_size,
            "enable_prefix_caching": has_cache,
            "enable_chunked_prefill": is_chunked,
            "batch_timeout_ms": float(timeout_steps),
            "max_model_len": MAX_MODEL_LEN,
        }
    )
    num_blocks = -(-MAX_MODEL_LEN // block_size) + spare_blocks
    scheduler = Scheduler(config, BlockManager(num_blocks, block_size, has_cache), MAX_MODEL_LEN)
    shadow = Shadow(block_size)
    requests: list[Request | None] = [None] * len(specs)
    finished = 0
    for step in range(4000):
        now_ns = step * 1_000_000
        for index, (prompt, max_tokens, arrival, abort) in enumerate(specs):
            if arrival == step:
                params = SamplingParams(max_tokens=max_tokens)
                requests[index] = Request(str(index), prompt, params, now_ns)
                scheduler.add(requests[index])
            known = requests[index]
            if abort == step and known is not None and known.finish_reason is None:
                scheduler.abort(known)
        plan = scheduler.schedule(now_ns)
        assert plan.num_tokens <= budget
        assert len(scheduler.running) <= max_num_seqs
        assert len({id(one.request) for one in plan.scheduled}) == len(plan.scheduled)
        if scheduler.running:
            assert plan.scheduled, "something runs and nothing was planned"
        scheduler.complete(plan, shadow.compute(plan))
        check_blocks(scheduler)
        if step > 40 and not scheduler.has_requests:
            break
    else:
        pytest.fail("a request starved")
    for index, (prompt, max_tokens, _, abort) in enumerate(specs):
        request = requests[index]
        assert request is not None and request.finish_reason is not None
        if request.finish_reason != "abort":
            room = MAX_MODEL_LEN - len(prompt)
            assert request.num_output_tokens == min(max_tokens, room)
            finished += 1
        else:
            assert abort is not None
    assert scheduler.blocks.num_free == num_blocks


def test_the_property_test_reaches_preemption_and_sharing() -> None:
    """The cases that the properties are about do occur in a tight cache."""
    config = EngineConfig.from_knobs({"block_size": 8, "max_num_batched_tokens": 64})
    scheduler = Scheduler(config, BlockManager(13, 8, True), MAX_MODEL_LEN)
    shadow = Shadow(8)
    for index in range(3):
        prompt = (*PREFIXES[0][:24], index)
        scheduler.add(Request(str(index), prompt, SamplingParams(max_tokens=40), index))
    preempted = cached = 0
    for step in range(400):
        plan = scheduler.schedule(step)
        preempted += plan.num_preempted
        cached += plan.num_cached_tokens
        scheduler.complete(plan, shadow.compute(plan))
        if not scheduler.has_requests:
            break
    assert preempted > 0 and cached > 0
    assert scheduler.blocks.num_free == 13
