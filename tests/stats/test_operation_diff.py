"""What a change between two traces comes from: by hand, planted, and its intervals simulated."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import stats
from traces import BASE, FACTS, Made, simulated, trace, true_added_us

from dstune.errors import DstuneError, NotComparable
from dstune.measure.operation_trace import StepPhase, Trace
from dstune.stats.operation_diff import OperationChange, OperationDiff, diff, shares_of

ATTENTION, PROJ, FFN = BASE


def row(found: OperationDiff, operation: str) -> OperationChange:
    (one,) = [one for one in found.operations if one.operation == operation]
    return one


def steady(times: dict[str, float], *, num_loads: int = 3, num: int = 4, **more: object) -> Trace:
    """Loads of equal steps, but for a microsecond more in each load, so that there is a spread."""
    return trace(
        [
            [Made({name: us + load for name, us in times.items()}, **more) for _ in range(num)]  # type: ignore[arg-type]
            for load in range(num_loads)
        ]
    )


def test_a_change_by_hand() -> None:
    """101 -> 131 us of attention, 51 -> 61 of the projection: 75% and 25% of 40 us."""
    found = diff(steady({ATTENTION: 100, PROJ: 50}), steady({ATTENTION: 130, PROJ: 60}))
    assert (found.matched, found.unit, found.num_steps) == ("steps", "loads", (12, 12))
    attention, proj = row(found, ATTENTION), row(found, PROJ)
    assert (attention.before_ms, attention.after_ms) == (pytest.approx(0.101), pytest.approx(0.131))
    assert attention.change.value == pytest.approx(30 / 101)
    assert attention.added_ms.value == pytest.approx(0.030)
    assert attention.share.value == pytest.approx(0.75)
    assert proj.share.value == pytest.approx(0.25)
    assert found.whole.added_ms.value == pytest.approx(0.040)
    assert found.whole.change.value == pytest.approx(40 / 152)
    assert found.first == attention
    assert [one.operation for one in shares_of(found)] == [ATTENTION, PROJ]
    assert shares_of(found)[0].phase == "decode"
    assert found.notes == ()


def test_the_interval_of_loads_by_hand() -> None:
    """Loads of 100, 101, 102 a side: the variance of a mean is 1/3, of a difference 2/3 on 4."""
    found = row(diff(steady({ATTENTION: 100}), steady({ATTENTION: 130})), ATTENTION).added_ms
    half = stats.t.ppf(0.975, 4) * (2 / 3) ** 0.5 / 1000
    assert (found.low, found.high) == (pytest.approx(0.030 - half), pytest.approx(0.030 + half))


def test_paired_loads_cancel_what_both_met() -> None:
    sides = [steady({ATTENTION: us}) for us in (100, 130)]
    found = row(diff(*sides, are_paired=True), ATTENTION).added_ms
    assert (found.low, found.high) == (pytest.approx(0.030), pytest.approx(0.030))


def test_facts_tell_of_a_pair() -> None:
    one = steady({ATTENTION: 100})
    pairs = [dataclasses.replace(one, facts={**FACTS, "pair": name}) for name in "xxy"]
    assert diff(pairs[0], pairs[1]).are_paired
    assert not diff(pairs[0], pairs[2]).are_paired
    assert not diff(one, pairs[0]).are_paired and not diff(one, one).are_paired


def test_what_hits_one_load_alone_does_not_count() -> None:
    """Another process takes 10 ms in one load of three, within the projection."""
    before, after = steady({ATTENTION: 100, PROJ: 50}), steady({ATTENTION: 130, PROJ: 50})
    rows = [
        dataclasses.replace(one, time_ns=one.time_ns + 10_000_000)
        if (one.load, one.step, one.operation) == (1, 2, PROJ)
        else one
        for one in after.operations
    ]
    steps = [
        dataclasses.replace(one, duration_ns=one.duration_ns + 10_000_000)
        if (one.load, one.step) == (1, 2)
        else one
        for one in after.steps
    ]
    hit = dataclasses.replace(after, operations=tuple(rows), steps=tuple(steps))
    found = diff(before, hit)
    assert row(found, PROJ).added_ms.value == pytest.approx(0.00025), "52 us, not 51, in one step"
    assert max(found.operations, key=lambda one: one.added_ms.value or 0).operation == ATTENTION


def test_shares_add_up_to_one() -> None:
    rng = np.random.default_rng(3)
    found = diff(simulated(rng), simulated(rng, slowed={ATTENTION: 1.6, PROJ: 1.3}))
    shares = [one.share.value or 0.0 for one in found.operations]
    assert sum(shares) == pytest.approx(1)
    assert sum(one.share.value or 0.0 for one in found.classes) == pytest.approx(1)
    assert sum(one.share.value or 0.0 for one in found.by_phase) == pytest.approx(1)
    assert found.whole.share.value == pytest.approx(1)


@pytest.mark.parametrize("num_loads", [1, 5])
def test_a_planted_slowdown_is_named_first_with_its_share(num_loads: int) -> None:
    rng = np.random.default_rng(11)
    # a load's own factor cannot be told from a slowdown when there is one load alone
    noise = {"num_loads": num_loads, "load_sd": 0.02 if num_loads > 1 else 0.0}
    found = diff(simulated(rng, **noise), simulated(rng, **noise, slowed={ATTENTION: 2.0}))
    assert found.first is not None and found.first.operation == ATTENTION
    assert found.first.share.value == pytest.approx(1, abs=0.15)
    assert found.first.change.value == pytest.approx(1, abs=0.1)
    named = shares_of(found)
    assert named[0].operation == ATTENTION
    assert named[0].phase == "all"
    assert {one.phase for one in found.by_phase} == {"prefill", "decode"}


def test_two_causes_get_their_shares() -> None:
    rng = np.random.default_rng(5)
    slowed = {ATTENTION: 1.5, PROJ: 1.4}
    added = true_added_us(slowed)
    found = diff(
        simulated(rng, num_loads=8), simulated(rng, num_loads=8, slowed=slowed), are_paired=False
    )
    for name, us in added.items():
        share = row(found, name).share
        assert share.value == pytest.approx(us / sum(added.values()), abs=0.15)
    # the projection alone is bound by memory, so it is read first; attention explains most
    assert [one.operation for one in found.operations[:2]] == [PROJ, ATTENTION]
    assert found.first is not None and found.first.operation == ATTENTION
    assert [one.operation for one in shares_of(found)] == [ATTENTION, PROJ]
    assert [one.is_memory_bound for one in shares_of(found)] == [False, True]


def test_what_explains_little_does_not_come_first() -> None:
    """The memory-bound projection is sure to be 1 us slower, of 101."""
    found = diff(
        steady({ATTENTION: 100, PROJ: 50}, num_bytes={PROJ: 9}, num_flops={ATTENTION: 9}),
        steady({ATTENTION: 200, PROJ: 51}, num_bytes={PROJ: 9}, num_flops={ATTENTION: 9}),
        are_paired=True,
    )
    assert [one.operation for one in found.operations][:2] == [ATTENTION, PROJ]
    assert row(found, PROJ).is_slower and not row(found, PROJ).explains
    assert [one.operation for one in shares_of(found)] == [ATTENTION]


def test_equal_traces_explain_nothing() -> None:
    one = simulated(np.random.default_rng(2))
    found = diff(one, one)
    assert found.first is None and found.whole.share.value is None
    assert shares_of(found) == ()
    assert all(one.share.value is None for one in found.operations)


def test_a_speedup_is_no_slowdown() -> None:
    rng = np.random.default_rng(4)
    found = diff(simulated(rng), simulated(rng, slowed={ATTENTION: 0.3}))
    assert found.first is not None and found.first.operation == ATTENTION
    assert found.first.change.value == pytest.approx(-0.7, abs=0.1)
    assert shares_of(found) == ()


def test_time_in_http_counts_and_idle_time_does_not() -> None:
    before = steady({ATTENTION: 100}, http=10.0, wait=50.0)
    after = steady({ATTENTION: 100}, http=40.0, wait=900.0)
    found = diff(before, after)
    assert found.whole.added_ms.value == pytest.approx(0.030)
    assert found.first is not None and found.first.operation == "http"


def test_an_operation_that_only_one_side_has() -> None:
    found = diff(steady({PROJ: 50}), steady({PROJ: 50, ATTENTION: 30}))
    new = row(found, ATTENTION)
    assert (new.before_ms, new.change.value) == (0.0, None)
    assert new.share.value == pytest.approx(1)


def test_other_compositions_are_matched_where_they_are_alike() -> None:
    """The slow side runs one step of another composition, which is left out with a note."""
    like = [Made({ATTENTION: 10.0 + at}, tokens=(0, 8, 100 + at)) for at in range(20)]
    slow = [Made({ATTENTION: 20.0 + at}, tokens=(0, 8, 100 + at)) for at in range(20)]
    other = Made({ATTENTION: 99.0}, tokens=(0, 4, 1))
    found = diff(trace([like]), trace([[*slow[::-1], other]]))
    assert (found.matched, found.unit, found.num_steps) == ("compositions", "batches", (20, 20))
    assert found.whole.added_ms.value == pytest.approx(0.010)
    assert found.whole.added_ms.low == pytest.approx(0.010), "matched: no spread at all"
    assert any("matched by composition" in note for note in found.notes)
    assert any("fewer than 3 loads" in note for note in found.notes)


def test_a_composition_of_one_load_is_left_out_with_it_on_both_sides() -> None:
    """Each load has a step of its own kind; all take twice the time, whatever is left out."""

    def loads(us: float) -> Trace:
        return trace([[Made({ATTENTION: us * (1 + kind)}, tokens=(0, 8, kind))
                       for kind in (0, 1, 2, 3 + load)] for load in range(3)])  # fmt: skip

    found = diff(loads(10), loads(20))
    assert (found.matched, found.unit) == ("compositions", "loads")
    assert found.whole.change.value == pytest.approx(1)
    assert found.whole.change.low == pytest.approx(1)


def test_without_like_compositions_phases_are_compared_and_it_says_so() -> None:
    rng = np.random.default_rng(8)
    found = diff(
        simulated(rng), simulated(rng, context=5000, slowed={ATTENTION: 2.0}, num_steps=70)
    )
    assert found.matched == "phases"
    assert any("--closed" in note for note in found.notes)
    assert found.first is not None and found.first.operation == ATTENTION


def test_a_phase_without_repetition_is_left_out_with_a_note() -> None:
    prefill = Made({"experts": 500.0}, phase=StepPhase.PREFILL, tokens=(64, 0, 64))
    sides = [[prefill, *(Made({ATTENTION: us + at % 2}) for at in range(8))] for us in (10, 20)]
    found = diff(trace([sides[0]]), trace([sides[1]]))
    assert [one.phase for one in found.steps] == ["decode", "all"]
    assert any("prefill steps are left out" in note for note in found.notes)


def test_a_single_step_has_figures_and_no_interval() -> None:
    found = diff(trace([[Made({ATTENTION: 10})]]), trace([[Made({ATTENTION: 20})]]))
    assert found.whole.added_ms.value == pytest.approx(0.010)
    assert found.whole.added_ms.low is None and found.first is None
    assert "no interval: nothing repeats" in found.notes


@pytest.mark.parametrize(
    "key", ["model", "model_digest", "precision", "workload", "load", "machine"]
)
def test_traces_of_something_else_are_not_comparable(key: str) -> None:
    one, other = trace([[Made({})]]), trace([[Made({})]], facts={**FACTS, key: "another"})
    with pytest.raises(NotComparable, match=key) as raised:
        diff(one, other)
    assert "\n" not in str(raised.value)


def test_another_device_is_not_comparable_and_other_knobs_are() -> None:
    one = steady({ATTENTION: 10})
    with pytest.raises(NotComparable, match="device cpu and NVIDIA"):
        diff(one, dataclasses.replace(one, device="NVIDIA H200"))
    diff(one, dataclasses.replace(one, facts={**FACTS, "knobs": {"block_size": 32}}))


def test_kinds_of_steps_that_never_meet() -> None:
    prefill = trace([[Made({PROJ: 1.0}, phase=StepPhase.PREFILL, tokens=(9, 0, 9))]])
    with pytest.raises(NotComparable, match="no kind of step in common"):
        diff(trace([[Made({PROJ: 1.0})]]), prefill)
    with pytest.raises(DstuneError, match="without a step"):
        diff(trace([]), prefill)


@pytest.mark.parametrize("num_loads", [1, 3, 6])
def test_intervals_cover_the_truth(num_loads: int) -> None:
    """120 pairs of traces; the 95% intervals of added time and of the share hold the truth.

    In fewer than 107 of 120 with a probability below 0.3% if they cover 95%. One load has no
    factor of its own, for a single load cannot show it, and means; else medians are compared.
    """
    rng = np.random.default_rng(20 + num_loads)
    slowed = {ATTENTION: 1.8, PROJ: 1.5}
    is_one = num_loads == 1
    load_sd = 0.0 if is_one else 0.03
    mean_factor = float(np.exp(0.1**2 / 2)) if is_one else 1.0
    added = true_added_us(slowed)
    num_added = num_share = 0
    for _ in range(120):
        a = simulated(rng, num_loads=num_loads, load_sd=load_sd, correlation=0.3)
        b = simulated(rng, num_loads=num_loads, load_sd=load_sd, correlation=0.3, slowed=slowed)
        one = row(diff(a, b), ATTENTION)
        assert one.added_ms.low is not None and one.added_ms.high is not None
        true_ms = added[ATTENTION] * mean_factor / 1000
        num_added += one.added_ms.low <= true_ms <= one.added_ms.high
        share = added[ATTENTION] / sum(added.values())
        if one.share.low is not None and one.share.high is not None:
            num_share += one.share.low <= share <= one.share.high
        else:
            num_share += one.share.value is None  # the change is within noise, and it says so
    assert num_added >= 107
    assert num_share >= 107


def test_false_alarms_are_rare() -> None:
    """Of 120 pairs of like traces the whole is beyond noise in 5%; 15 or more have p < .2%."""
    rng = np.random.default_rng(33)
    num = sum(
        diff(simulated(rng, num_loads=4), simulated(rng, num_loads=4)).whole.is_beyond_noise
        for _ in range(120)
    )
    assert num <= 14
