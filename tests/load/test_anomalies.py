"""Hostile requests mixed in: the asked share, every kind, and nothing else moved."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dstune.load.build import build_plan
from dstune.load.plan import LoadPlan
from dstune.measure.anomalies import Anomaly
from dstune.profile.load import parse_profile
from dstune.profile.model import Profile

TOKENS = list(range(5000))


def profile(number: int, work: str = "", anomalies: str = "") -> Profile:
    return parse_profile(
        "p.yaml",
        f"name: x\nworkload: {{prompt_tokens: 8, output_tokens: 4, num_requests: {number}{work}"
        f"{anomalies}}}\narrivals: {{kind: poisson, rate_per_s: 5}}\n",
    )


def hostile(number: int, work: str = "", repetition: int = 0) -> LoadPlan:
    return build_plan(profile(number, work), repetition, TOKENS, with_anomalies=True)


def test_one_in_twenty_is_hostile_by_default_and_every_kind_as_often() -> None:
    kinds = Counter(one.kind for one in hostile(4400).requests)
    assert kinds.pop("normal") == 4400 - 220
    assert kinds == {one.value: 20 for one in Anomaly}
    kinds = Counter(one.kind for one in hostile(3000).requests)
    del kinds["normal"]
    assert sum(kinds.values()) == 150 and max(kinds.values()) - min(kinds.values()) <= 2


@pytest.mark.parametrize("number", [5, 20, 64, 160, 500])
def test_the_share_is_kept_in_small_loads_too(number: int) -> None:
    plan = hostile(number)
    assert sum(one.kind != "normal" for one in plan.requests) == round(0.05 * number)


def test_the_others_stay_as_they_were() -> None:
    one = profile(400)
    without = build_plan(one, 1, TOKENS).requests
    mixed = build_plan(one, 1, TOKENS, with_anomalies=True).requests
    assert {each.kind for each in without} == {"normal"}
    for a, b in zip(without, mixed, strict=True):
        if b.kind == "normal":
            assert a == b
        assert (a.request_id, a.offset_ns, a.prompt_token_ids) == (
            b.request_id, b.offset_ns, b.prompt_token_ids
        )  # fmt: skip


def test_none_are_sent_when_none_are_asked_for() -> None:
    one = profile(100, anomalies=", anomalies: 0")
    assert build_plan(one, 0, TOKENS, with_anomalies=True) == build_plan(one, 0, TOKENS)


def test_equal_arguments_give_equal_places_and_repetitions_others() -> None:
    assert hostile(300) == hostile(300)
    places = [
        tuple(at for at, one in enumerate(hostile(300, repetition=rep).requests)
              if one.kind != "normal")
        for rep in range(3)
    ]  # fmt: skip
    assert len(set(places)) == 3


@settings(deadline=None, max_examples=30)
@given(
    number=st.integers(1, 200),
    share=st.floats(0, 0.99),
    turns=st.sampled_from(["1", "3", "{distribution: uniform, min: 1, max: 4}"]),
    seed=st.integers(0, 100),
)
def test_duplicates_come_in_pairs_of_one_seed_that_arrive_together(
    number: int, share: float, turns: str, seed: int
) -> None:
    work = f", turns: {turns}, seed: {seed}"
    one = profile(number, work, f", anomalies: {share:.4f}")
    requests = build_plan(one, 0, TOKENS, with_anomalies=True).requests
    asked = round(round(share, 4) * number)
    found = sum(each.kind != "normal" for each in requests)
    assert found == asked or (turns != "1" and found < asked)
    pairs = Counter(each.seed for each in requests if each.kind == Anomaly.DUPLICATE_ID.value)
    assert set(pairs.values()) <= {2}
    firsts = [each for each in requests if each.turn == 0]
    for a in pairs:
        at = [index for index, each in enumerate(firsts) if each.seed == a]
        assert at == [at[0], at[0] + 1]
        assert firsts[at[0]].prompt_token_ids != firsts[at[1]].prompt_token_ids
