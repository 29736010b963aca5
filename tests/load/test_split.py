"""The split between load processes: together they are exactly the plan."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dstune.load.bodies import Asker
from dstune.load.build import build_plan
from dstune.load.plan import LoadPlan
from dstune.load.split import to_wire
from dstune.load.wire import WirePlan
from dstune.profile.load import parse_profile

TOKENS = list(range(5000))


def plan(number: int, turns: int = 1, concurrency: int = 0, seed: int = 0) -> LoadPlan:
    arrivals = (
        f"concurrency, concurrency: {concurrency}" if concurrency else "poisson, rate_per_s: 9"
    )
    text = (
        f"name: x\nworkload: {{prompt_tokens: 20, output_tokens: 4, num_requests: {number}, "
        f"turns: {turns}, seed: {seed}}}\narrivals: {{kind: {arrivals}}}\n"
    )
    return build_plan(parse_profile("p.yaml", text), 0, TOKENS)


def split(one: LoadPlan, processes: int) -> list[WirePlan]:
    return to_wire(one, Asker("m"), url="http://h:1", path="/v1/completions",
                   headers={"a": "b"}, num_processes=processes)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(
    number=st.integers(1, 60),
    turns=st.integers(1, 4),
    concurrency=st.integers(0, 9),
    processes=st.integers(1, 8),
    seed=st.integers(0, 50),
)
def test_the_union_is_the_plan(
    number: int, turns: int, concurrency: int, processes: int, seed: int
) -> None:
    one = plan(number, turns, concurrency, seed)
    shares = split(one, processes)
    sent = [request for share in shares for request in share.requests]
    by_id = {each.request_id: each for each in sent}
    assert len(by_id) == len(sent) == number and all(share.requests for share in shares)
    for asked in one.requests:
        got = by_id[asked.request_id]
        assert (got.offset_ns, got.turn, got.think_ns, got.session_id, got.kind) == (
            asked.offset_ns, asked.turn, asked.think_ns, asked.session_id, asked.kind
        )  # fmt: skip
        assert json.loads(got.body)["prompt"] == list(asked.prompt_token_ids)
        assert got.prompt_tokens == len(asked.prompt_token_ids)
    order = {each.request_id: at for at, each in enumerate(one.requests)}
    homes: dict[str, int] = {}
    for share in shares:
        places = [order[each.request_id] for each in share.requests]
        assert places == sorted(places)
        for each in share.requests:
            assert homes.setdefault(each.session_id or each.request_id, share.process) == (
                share.process
            )
    prompts = Counter(each.body for each in sent)
    assert max(prompts.values()) == 1
    if concurrency:
        given_out = [share.concurrency or 0 for share in shares]
        assert min(given_out) > 0 and sum(given_out) <= concurrency
        assert sum(given_out) == concurrency or len(homes) < concurrency
    else:
        assert {share.concurrency for share in shares} == {None}


def test_each_process_gets_as_much_as_it_has_places() -> None:
    shares = split(plan(500, concurrency=5), 2)
    assert [share.concurrency for share in shares] == [3, 2]
    assert [len(share.requests) for share in shares] == [300, 200]
    assert [share.concurrency for share in split(plan(500, concurrency=2), 8)] == [1, 1]


def test_the_arrivals_of_a_process_are_every_so_manyth_of_all() -> None:
    one = plan(4000)
    shares = split(one, 4)
    assert [len(share.requests) for share in shares] == [1000] * 4
    offsets = np.array([each.offset_ns for each in shares[1].requests], dtype=float) / 1e9
    # gaps of four exponential ones: mean 4/9 s, coefficient of variation 1/2
    gaps = np.diff(offsets)
    assert gaps.mean() == pytest.approx(4 / 9, rel=0.1)
    assert gaps.std() / gaps.mean() == pytest.approx(0.5, rel=0.1)


def test_a_share_says_what_the_plan_says() -> None:
    share = split(plan(3), 1)[0]
    assert (share.url, share.path, share.headers) == ("http://h:1", "/v1/completions", {"a": "b"})
    assert (share.timeout_s, share.duration_s, share.grace_s) == (600.0, None, 30.0)
