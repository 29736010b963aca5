"""Sessions: turns whose context grows, at the asked rate of requests."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dstune.load.build import build_plan
from dstune.load.plan import LoadPlan, PlannedRequest
from dstune.profile.load import parse_profile
from dstune.profile.model import Profile

TOKENS = list(range(5000))


def profile(work: str, arrivals: str = "{kind: poisson, rate_per_s: 5}") -> Profile:
    return parse_profile("p.yaml", f"name: x\nworkload: {{{work}}}\narrivals: {arrivals}\n")


def sessions(plan: LoadPlan) -> list[list[PlannedRequest]]:
    return [list(turns) for _, turns in itertools.groupby(plan.requests, lambda r: r.session_id)]


def test_turns_stand_together_and_the_last_session_may_be_short() -> None:
    plan = build_plan(profile("prompt_tokens: 8, output_tokens: 4, turns: 3, num_requests: 8"),
                      2, TOKENS)  # fmt: skip
    assert [len(one) for one in sessions(plan)] == [3, 3, 2]
    assert [one.session_id for one in plan.requests[::3]] == ["s2-00000", "s2-00001", "s2-00002"]
    assert [one.turn for one in plan.requests] == [0, 1, 2, 0, 1, 2, 0, 1]
    assert [one.offset_ns is None for one in plan.requests] == [
        False, True, True, False, True, True, False, True
    ]  # fmt: skip


def test_a_turn_asks_all_earlier_prompts_and_answers_and_its_own() -> None:
    work = "prompt_tokens: {distribution: uniform, min: 5, max: 9}, output_tokens: 4, turns: 3"
    one = profile(f"{work}, shared_prefix_tokens: 11, num_requests: 6")
    alone = profile(work.replace("turns: 3", "num_requests: 6"))
    own = [each.prompt_token_ids for each in build_plan(alone, 0, TOKENS).requests]
    plan = build_plan(one, 0, TOKENS)
    prefix = plan.requests[0].prompt_token_ids[:11]
    for at, turns in zip((0, 3), sessions(plan), strict=True):
        context = prefix
        for index, turn in enumerate(turns):
            assert turn.prompt_token_ids == context + own[at + index]
            # the answer in its place goes on in the corpus behind its prompt
            goes_on = tuple((own[at + index][-1] + ahead) % 5000 for ahead in range(1, 5))
            context = turn.prompt_token_ids + goes_on
    longest = max(len(each.prompt_token_ids) + each.output_tokens for each in plan.requests)
    assert longest <= one.workload.longest_request_tokens == 11 + 3 * (9 + 4)


def test_lengths_of_sessions_are_drawn() -> None:
    work = "prompt_tokens: 8, output_tokens: 4, num_requests: 3000, "
    plan = build_plan(profile(work + "turns: {distribution: uniform, min: 1, max: 5}"), 0, TOKENS)
    lengths = [len(one) for one in sessions(plan)][:-1]
    assert set(lengths) == {1, 2, 3, 4, 5}
    # uniform on 1..5: mean 3, standard deviation sqrt(2)
    assert abs(np.mean(lengths) - 3) < 4 * np.sqrt(2 / len(lengths))


@pytest.mark.parametrize("kind", ["poisson", "constant"])
def test_requests_have_the_rate_and_sessions_theirs_over_the_mean_of_turns(kind: str) -> None:
    work = "prompt_tokens: 8, output_tokens: 4, turns: 4, num_requests: 400"
    plan = build_plan(profile(work, f"{{kind: {kind}, rate_per_s: 10}}"), 0, TOKENS)
    starts = np.array([one.offset_ns for one in plan.requests if one.turn == 0], dtype=float) / 1e9
    assert len(starts) == 100
    assert np.diff(starts).mean() == pytest.approx(4 / 10, rel=1e-6)


def test_think_times_are_exponential_and_first_turns_have_none() -> None:
    work = "prompt_tokens: 8, output_tokens: 4, turns: 2, num_requests: 4000, think_time_s: 0.5"
    plan = build_plan(profile(work), 0, TOKENS)
    assert {one.think_ns for one in plan.requests if one.turn == 0} == {0}
    thinks = np.array([one.think_ns for one in plan.requests if one.turn == 1]) / 1e9
    assert abs(thinks.mean() - 0.5) < 4 * 0.5 / np.sqrt(2000)
    assert abs(np.mean(thinks > 0.5) - np.exp(-1)) < 4 * np.sqrt(0.25 / 2000)


def test_a_closed_loop_of_sessions_has_no_schedule() -> None:
    work = "prompt_tokens: 8, output_tokens: 4, turns: 2, num_requests: 6"
    plan = build_plan(profile(work, "{kind: concurrency, concurrency: 2}"), 0, TOKENS)
    assert plan.concurrency == 2 and {one.offset_ns for one in plan.requests} == {None}


def test_single_turns_are_sessions_of_their_own() -> None:
    plan = build_plan(profile("prompt_tokens: 8, output_tokens: 4, num_requests: 6"), 0, TOKENS)
    assert {(one.session_id, one.turn, one.think_ns) for one in plan.requests} == {("", 0, 0)}
