"""The scheduler's decisions, each on a hand-made case with a clock that the test moves."""

from collections.abc import Callable

import pytest

import dstune.engine.blocks
from dstune.engine.blocks import BlockManager
from dstune.engine.config import EngineConfig
from dstune.engine.request import FinishReason, Phase, Request, SamplingParams
from dstune.engine.scheduler import Scheduler, StepPlan

MS = 1_000_000


def make(num_blocks: int = 64, **knobs: object) -> Scheduler:
    config = EngineConfig.from_knobs({"block_size": 16, **knobs})
    blocks = BlockManager(num_blocks, config.block_size, config.enable_prefix_caching)
    return Scheduler(config, blocks, max_model_len=num_blocks * config.block_size)


def ask(
    scheduler: Scheduler,
    name: str,
    prompt: int | tuple[int, ...],
    max_tokens: int = 8,
    arrival_ns: int = 0,
    **params: object,
) -> Request:
    ids = (
        prompt if isinstance(prompt, tuple) else tuple(ord(name) * 1000 + i for i in range(prompt))
    )
    request = Request(name, ids, SamplingParams(max_tokens=max_tokens, **params), arrival_ns)  # type: ignore[arg-type]
    scheduler.add(request)
    return request


def shares(plan: StepPlan) -> list[tuple[str, int, int, str]]:
    return [(s.request.request_id, s.start, s.num_tokens, s.phase.value) for s in plan.scheduled]


def advance(scheduler: Scheduler, now_ns: int = 0, token: int = 7) -> StepPlan:
    plan = scheduler.schedule(now_ns)
    scheduler.complete(plan, [token] * sum(s.yields_token for s in plan.scheduled))
    return plan


def test_chunks_follow_the_token_budget_and_decodes_keep_running() -> None:
    scheduler = make(max_num_batched_tokens=32, max_num_seqs=4)
    ask(scheduler, "a", 10)
    assert shares(advance(scheduler)) == [("a", 0, 10, "prefill")]
    ask(scheduler, "b", 70)
    assert shares(advance(scheduler)) == [("a", 10, 1, "decode"), ("b", 0, 31, "prefill")]
    assert shares(advance(scheduler)) == [("a", 11, 1, "decode"), ("b", 31, 31, "prefill")]
    assert shares(advance(scheduler)) == [("a", 12, 1, "decode"), ("b", 62, 8, "prefill")]
    assert shares(advance(scheduler)) == [("a", 13, 1, "decode"), ("b", 70, 1, "decode")]


def test_without_chunking_a_prompt_waits_for_a_step_that_holds_it_whole() -> None:
    scheduler = make(
        max_num_batched_tokens=64, max_num_seqs=4, enable_chunked_prefill=False, max_model_len=64
    )
    ask(scheduler, "a", 40)
    ask(scheduler, "b", 40)
    assert shares(advance(scheduler)) == [("a", 0, 40, "prefill")]
    assert shares(advance(scheduler)) == [("a", 40, 1, "decode"), ("b", 0, 40, "prefill")]


def test_the_newest_is_preempted_and_resumes_before_later_arrivals() -> None:
    scheduler = make(num_blocks=4, enable_prefix_caching=False)
    old = ask(scheduler, "o", 31, max_tokens=20)
    new = ask(scheduler, "n", 30, max_tokens=20)
    advance(scheduler)  # o: 31 computed, n: 30 computed, two blocks each
    ask(scheduler, "w", 5)
    advance(scheduler)  # o fills its 32nd slot, n its 31st
    plan = advance(scheduler)
    assert shares(plan) == [("o", 32, 1, "decode")]
    assert plan.num_preempted == 1
    assert new.num_preemptions == 1 and new.num_output_tokens == 2 and new.block_table == []
    assert [request.request_id for request in scheduler.waiting] == ["n", "w"]
    while old.finish_reason is None:
        advance(scheduler)
    resumed = scheduler.schedule(0)
    assert shares(resumed)[0] == ("n", 0, 32, "prefill"), "prompt and its two tokens again"


def test_a_prompt_is_admitted_whole_or_not_at_all() -> None:
    scheduler = make(num_blocks=8, max_num_batched_tokens=32)
    ask(scheduler, "a", 80)
    advance(scheduler)
    assert scheduler.blocks.num_free == 3, "all five blocks are taken with the first chunk"
    ask(scheduler, "b", 64)
    for _ in range(4):
        assert all(share[0] == "a" for share in shares(advance(scheduler)))


def test_arrivals_are_held_for_the_timeout_and_decodes_never_wait() -> None:
    scheduler = make(batch_timeout_ms=50.0, max_num_seqs=4)
    ask(scheduler, "a", 4, arrival_ns=0)
    assert not scheduler.schedule(10 * MS).scheduled
    assert scheduler.hold_until_ns(10 * MS) == 50 * MS
    ask(scheduler, "b", 4, arrival_ns=30 * MS)
    assert [s[0] for s in shares(advance(scheduler, 50 * MS))] == ["a", "b"], "b joins a's step"
    ask(scheduler, "c", 4, arrival_ns=60 * MS)
    assert [s[0] for s in shares(advance(scheduler, 61 * MS))] == ["a", "b"]
    assert [s[0] for s in shares(advance(scheduler, 110 * MS))] == ["a", "b", "c"]


def test_a_full_batch_is_not_held() -> None:
    by_sequences = make(batch_timeout_ms=1000.0, max_num_seqs=2)
    ask(by_sequences, "a", 4)
    assert not by_sequences.schedule(0).scheduled
    ask(by_sequences, "b", 4)
    assert len(by_sequences.schedule(0).scheduled) == 2
    by_tokens = make(batch_timeout_ms=1000.0, max_num_batched_tokens=64)
    ask(by_tokens, "a", 64)
    assert len(by_tokens.schedule(0).scheduled) == 1


def test_an_exact_full_block_hit_still_computes_a_token() -> None:
    scheduler = make()
    prompt = tuple(range(48))
    ask(scheduler, "a", prompt, max_tokens=1)
    advance(scheduler)
    again = ask(scheduler, "b", prompt)
    plan = scheduler.schedule(0)
    assert shares(plan) == [("b", 32, 16, "prefill")], "never an empty query"
    assert again.num_cached_tokens == plan.num_cached_tokens == 32


def test_blocks_are_shared_only_once_computed() -> None:
    scheduler = make(max_num_batched_tokens=32, max_num_seqs=8)
    prompt = tuple(range(64))
    ask(scheduler, "a", prompt)
    advance(scheduler)  # 32 of 64 tokens computed: two blocks may be shared, not four
    ask(scheduler, "b", (*prompt, 1))
    plan = advance(scheduler)
    assert shares(plan) == [("a", 32, 32, "prefill")]
    assert shares(advance(scheduler)) == [("a", 64, 1, "decode"), ("b", 64, 1, "prefill")]


def test_a_changed_token_ends_the_match() -> None:
    scheduler = make()
    prompt = tuple(range(64))
    ask(scheduler, "a", prompt, max_tokens=1)
    advance(scheduler)
    ask(scheduler, "b", (*prompt[:20], 999, *prompt[21:]))
    assert shares(scheduler.schedule(0)) == [("b", 16, 48, "prefill")]


@pytest.mark.parametrize(
    ("weak_hash", "shared_tokens"),
    [(lambda parent, ids: b"always", 0), (lambda parent, ids: bytes([ids[0]]), 16)],
    ids=["every-block-collides", "parents-are-ignored"],
)
def test_a_hit_is_verified_and_not_believed(
    monkeypatch: pytest.MonkeyPatch,
    weak_hash: Callable[[bytes, tuple[int, ...]], bytes],
    shared_tokens: int,
) -> None:
    monkeypatch.setattr(dstune.engine.blocks, "hash_block", weak_hash)
    scheduler = make()
    common = (1,) * 16
    ask(scheduler, "a", (*(2,) * 16, *common, 5), max_tokens=1)
    advance(scheduler)
    ask(scheduler, "b", (*(3,) * 16, 4), max_tokens=1)
    advance(scheduler)
    ask(scheduler, "c", (*(3,) * 16, *common, 5), max_tokens=1)
    (share,) = scheduler.schedule(0).scheduled
    assert share.start == shared_tokens, "what follows another first block is not this one's"


def test_reset_cache_forgets_prefixes() -> None:
    scheduler = make()
    ask(scheduler, "a", tuple(range(64)), max_tokens=1)
    advance(scheduler)
    scheduler.blocks.reset_cache()
    ask(scheduler, "b", tuple(range(64)))
    assert shares(scheduler.schedule(0)) == [("b", 0, 64, "prefill")]


@pytest.mark.parametrize(
    ("params", "token", "reason", "length"),
    [
        ({"max_tokens": 3}, 7, FinishReason.LENGTH, 3),
        ({"max_tokens": 9, "stop_token_ids": frozenset({7})}, 7, FinishReason.STOP, 1),
        ({"max_tokens": 2, "stop_token_ids": frozenset({7}), "ignore_eos": True}, 7,
         FinishReason.LENGTH, 2),
        ({"max_tokens": 999}, 7, FinishReason.LENGTH, 28),  # max_model_len 32, prompt 4
    ],
)  # fmt: skip
def test_stop_conditions(
    params: dict[str, object], token: int, reason: FinishReason, length: int
) -> None:
    scheduler = make(num_blocks=2)
    request = ask(scheduler, "a", 4, **params)  # type: ignore[arg-type]
    while request.finish_reason is None:
        advance(scheduler, token=token)
    assert (request.finish_reason, request.num_output_tokens) == (reason, length)
    assert scheduler.blocks.num_free == 2 and not scheduler.has_requests


def test_abort_frees_blocks_wherever_the_request_is() -> None:
    scheduler = make(max_num_seqs=1)
    running, waiting = ask(scheduler, "r", 40), ask(scheduler, "w", 4)
    advance(scheduler)
    scheduler.abort(waiting)
    scheduler.abort(running)
    assert scheduler.blocks.num_free == 64 and not scheduler.has_requests
    assert running.finish_reason is waiting.finish_reason is FinishReason.ABORT


def test_fewer_sequences_take_effect_between_steps() -> None:
    scheduler = make(max_num_seqs=2)
    for name in "abc":
        ask(scheduler, name, 4, max_tokens=2)
    advance(scheduler)
    scheduler.config = EngineConfig.from_knobs({"max_num_seqs": 1})
    assert len(advance(scheduler).scheduled) == 2, "what runs keeps running"
    assert [s[0] for s in shares(advance(scheduler))] == ["c"]


def test_phase_is_explicit() -> None:
    request = Request("a", (1, 2, 3), SamplingParams(), 0)
    assert request.phase is Phase.PREFILL
    request.num_computed_tokens = 2
    assert request.phase is Phase.PREFILL, "the prompt's last token is prefill even when alone"
    request.num_computed_tokens = 3
    request.token_ids.append(9)
    assert request.phase is Phase.DECODE
