"""Arrivals and workload: the asked process, drawn the same way everywhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dstune.errors import DstuneError
from dstune.load.arrivals import draw_offsets_ns
from dstune.load.build import (
    WARMUP_OUTPUT_TOKENS,
    build_plan,
    build_warmup,
    closed_loop_requests,
)
from dstune.load.plan import LoadPlan
from dstune.load.workload import Corpus, cut, draw_lengths
from dstune.profile.load import parse_profile
from dstune.profile.model import ArrivalKind, Arrivals, Length, Profile

TOKENS = list(range(5000))


def profile(extra: str = "", work: str = "prompt_tokens: 40, output_tokens: 16") -> Profile:
    return parse_profile("p.yaml", f"name: x\nworkload: {{{work}, num_requests: 30}}\n{extra}")


def gaps_s(arrivals: Arrivals, count: int, seed: int = 0) -> np.ndarray:
    offsets = draw_offsets_ns(arrivals, count, np.random.default_rng(seed))
    return np.diff(np.array(offsets, dtype=float)) / 1e9


def test_all_at_once_is_now_and_a_closed_loop_has_no_schedule() -> None:
    rng = np.random.default_rng(0)
    assert draw_offsets_ns(Arrivals(kind=ArrivalKind.ALL_AT_ONCE), 3, rng) == [0, 0, 0]
    closed = Arrivals(kind=ArrivalKind.CONCURRENCY, concurrency=2)
    assert draw_offsets_ns(closed, 3, rng) == [None, None, None]


def test_constant_gaps_are_constant() -> None:
    assert gaps_s(Arrivals(kind=ArrivalKind.CONSTANT, rate_per_s=4), 5) == pytest.approx([0.25] * 4)


@settings(deadline=None, max_examples=30)
@given(
    rate=st.floats(0.1, 1000),
    kind_cv=st.sampled_from([(ArrivalKind.POISSON, None, 1.0), (ArrivalKind.GAMMA, 0.3, 0.3),
                             (ArrivalKind.GAMMA, 1.0, 1.0), (ArrivalKind.GAMMA, 2.0, 2.0)]),
    seed=st.integers(0, 1000),
)  # fmt: skip
def test_random_arrivals_have_the_asked_rate_and_spread(
    rate: float, kind_cv: tuple[ArrivalKind, float | None, float], seed: int
) -> None:
    kind, asked_cv, cv = kind_cv
    gaps = gaps_s(Arrivals(kind=kind, rate_per_s=rate, cv=asked_cv), 4001, seed)
    assert np.mean(gaps) == pytest.approx(1 / rate, rel=1e-4)  # exact but for rounding to ns
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(cv, rel=0.2)
    assert (gaps >= 0).all()


def test_few_arrivals_have_exactly_the_asked_rate_too() -> None:
    for seed in range(20):
        gaps = gaps_s(Arrivals(kind=ArrivalKind.POISSON, rate_per_s=8), 20, seed)
        assert gaps.mean() == pytest.approx(1 / 8, rel=1e-6)


def test_poisson_gaps_are_exponential_not_merely_of_the_right_spread() -> None:
    gaps = gaps_s(Arrivals(kind=ArrivalKind.POISSON, rate_per_s=10), 20001)
    assert np.mean(gaps > 0.1) == pytest.approx(np.exp(-1), abs=0.01)
    assert np.mean(gaps > 0.3) == pytest.approx(np.exp(-3), abs=0.01)


def test_lengths_follow_their_distribution_and_its_bounds() -> None:
    rng = np.random.default_rng(0)
    lognormal = Length(distribution="lognormal", median=96, sigma=0.6, max=384, min=10)
    drawn = draw_lengths(lognormal, 20000, rng)
    assert np.median(drawn) == pytest.approx(96, rel=0.03)
    assert min(drawn) >= 10 and max(drawn) == 384
    middle = [one for one in drawn if 10 < one < 384]
    assert np.std(np.log(middle)) == pytest.approx(0.6, rel=0.05)
    uniform = draw_lengths(Length(distribution="uniform", min=3, max=5), 1000, rng)
    assert set(uniform) == {3, 4, 5}
    assert draw_lengths(Length(distribution="constant", value=7), 2, rng) == [7, 7]


def test_equal_arguments_give_an_equal_plan() -> None:
    one = profile("arrivals: {kind: poisson, rate_per_s: 5}")
    assert build_plan(one, 3, TOKENS) == build_plan(one, 3, TOKENS)


def test_another_seed_or_repetition_gives_another_plan() -> None:
    one = profile("arrivals: {kind: poisson, rate_per_s: 5}")
    other = profile("arrivals: {kind: poisson, rate_per_s: 5}",
                    "prompt_tokens: 40, output_tokens: 16, seed: 1")  # fmt: skip
    plans = [build_plan(one, 0, TOKENS), build_plan(one, 1, TOKENS), build_plan(other, 0, TOKENS)]
    prompts = [tuple(request.prompt_token_ids for request in plan.requests) for plan in plans]
    offsets = [tuple(request.offset_ns for request in plan.requests) for plan in plans]
    assert len(set(prompts)) == 3 and len(set(offsets)) == 3


def test_no_prompt_shares_a_prefix_with_one_of_another_repetition() -> None:
    one = profile()
    requests = [each for rep in range(10) for each in build_plan(one, rep, TOKENS).requests]
    firsts = {each.prompt_token_ids[:16] for each in requests}
    assert len(firsts) == len(requests)


def test_a_shared_prefix_is_shared_and_comes_on_top() -> None:
    one = profile(work="prompt_tokens: 40, output_tokens: 16, shared_prefix_tokens: 100")
    requests = build_plan(one, 0, TOKENS).requests
    assert len({each.prompt_token_ids[:100] for each in requests}) == 1
    assert len({each.prompt_token_ids[100:] for each in requests}) == len(requests)
    assert {len(each.prompt_token_ids) for each in requests} == {140}


def test_prompts_longer_than_the_corpus_go_around_it() -> None:
    plan = build_plan(profile(), 0, [1, 2, 3])
    prompt = plan.requests[0].prompt_token_ids
    assert len(prompt) == 40 and prompt[:3] == prompt[3:6]


@given(start=st.integers(0, 30), length=st.integers(0, 40))
def test_the_corpus_is_a_ring(start: int, length: int) -> None:
    tokens = [3, 1, 4, 1, 5, 9, 2]
    assert cut(tokens, start, length) == tuple(tokens[(start + at) % 7] for at in range(length))


def test_prompts_begin_like_no_other_when_the_corpus_is_used_up() -> None:
    corpus = Corpus(TOKENS[:200], seed=0)
    beginnings = {corpus.prompt(place, 16) for place in range(5 * 200)}
    assert len(beginnings) == 5 * 200
    assert corpus.prompt(3, 16)[1:] == corpus.prompt(203, 16)[1:], "text but for the first token"


def test_loads_of_two_drawn_seeds_have_no_beginning_in_common() -> None:
    def beginnings(seed: int) -> set[tuple[int, ...]]:
        corpus = Corpus(TOKENS, seed)
        return {corpus.prompt(place, 16) for place in range(1000)}

    # of 5000 places 200 are expected to be in both
    assert len(beginnings(1) & beginnings(2)) > 100
    assert not beginnings(3_000_000_001) & beginnings(4_000_000_002)


def test_a_closed_loop_has_enough_to_do() -> None:
    # 4 at a time, each at least 0.3 s: in 1 s every place begins 4 at most (0, 0.3, 0.6, 0.9)
    assert closed_loop_requests(4, 1.0, 0.3) == 4 * 5
    assert closed_loop_requests(4, 1.0, 0.5) == 4 * 3


def test_a_closed_loop_ends_with_its_duration_and_an_open_one_by_itself() -> None:
    closed = profile("arrivals: {kind: concurrency, concurrency: 4, duration: 20s}")
    assert build_plan(closed, 0, TOKENS).duration_s == 20
    one = parse_profile(
        "p.yaml",
        "name: x\nworkload: {prompt_tokens: 4, output_tokens: 2}\n"
        "arrivals: {kind: poisson, rate_per_s: 5, duration: 20s}\n",
    )
    plan = build_plan(one, 0, TOKENS)
    assert plan.duration_s is None and len(plan.requests) == 100
    assert max(each.offset_ns or 0 for each in plan.requests) == pytest.approx(19.8e9)


def test_the_closed_loop_carries_its_concurrency() -> None:
    plan = build_plan(profile("arrivals: {kind: concurrency, concurrency: 4}"), 0, TOKENS)
    assert plan.concurrency == 4
    assert {request.offset_ns for request in plan.requests} == {None}


def test_warmup_is_short_and_apart() -> None:
    warmup: LoadPlan = build_warmup(profile(), TOKENS)
    assert all(each.output_tokens <= WARMUP_OUTPUT_TOKENS for each in warmup.requests)
    measured = {each.request_id for each in build_plan(profile(), 0, TOKENS).requests}
    assert measured.isdisjoint(each.request_id for each in warmup.requests)


def test_a_tokenizer_that_makes_nothing_is_an_error() -> None:
    with pytest.raises(DstuneError, match="no tokens"):
        build_plan(profile(), 0, [])
