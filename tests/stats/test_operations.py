"""Sums of a trace by hand: time, shares, achieved rates, limits, the timeline."""

from __future__ import annotations

import numpy as np
import pytest
from traces import CEILINGS, Made, simulated, trace

from dstune.errors import DstuneError
from dstune.measure.operation_trace import OpClass, StepPhase, Trace
from dstune.stats.operations import PhaseCost, bound_by_memory, summarize

ATTENTION = "latent_attention"


def phase(of: Trace, kind: StepPhase) -> PhaseCost:
    (found,) = [one for one in summarize(of).phases if one.phase is kind]
    return found


def two_decodes() -> Trace:
    counts = {"num_bytes": {ATTENTION: 10_000}, "num_flops": {ATTENTION: 4_000}}
    return trace(
        [[
            Made({"experts": 500.0}, rest=100.0, phase=StepPhase.PREFILL, tokens=(64, 0, 64)),
            Made({ATTENTION: 20.0, "experts": 60.0}, rest=20.0, calls={ATTENTION: 4}, **counts),
            Made({ATTENTION: 40.0, "experts": 60.0}, rest=0.0, calls={ATTENTION: 4}, **counts),
        ]]
    )  # fmt: skip


def test_a_phase_by_hand() -> None:
    decode = phase(two_decodes(), StepPhase.DECODE)
    assert decode.num_steps == 2
    assert decode.step_ms.value == pytest.approx(0.100)
    assert decode.steps_share == pytest.approx(200 / 800)
    assert (decode.decode_tokens, decode.context_tokens) == (8, 100)
    assert [one.operation for one in decode.operations] == ["experts", ATTENTION, "rest"]
    attention = decode.operations[1]
    assert attention.time_ms.value == pytest.approx(0.030)
    assert attention.share == pytest.approx(0.30)
    assert (attention.calls, attention.num_bytes, attention.num_flops) == (4, 10_000, 4_000)
    # 10,000 bytes in 30 us; at the ceiling of 1 GB/s they would take 10 us, the FLOPs 4 us
    assert attention.bytes_per_s == pytest.approx(1e4 / 30e-6)
    assert attention.flops_per_s == pytest.approx(4e3 / 30e-6)
    assert attention.limit_share == pytest.approx(1 / 3)
    assert attention.is_memory_bound is True
    rest = decode.operations[2]
    assert (rest.op_class, rest.share) == (OpClass.OTHER, pytest.approx(0.10))
    assert rest.is_memory_bound is None and rest.limit_share is None
    assert [one.operation for one in decode.classes] == ["ffn", "attention", "other"]


def test_the_interval_over_two_batches_by_hand() -> None:
    """Batches of one step each: 20 and 40 us; half is t(1, .975) x 14.142 / sqrt(2)."""
    found = phase(two_decodes(), StepPhase.DECODE).operations[1].time_ms
    assert found.high is not None
    assert found.high - 0.030 == pytest.approx(12.7062 * 0.010, rel=1e-4)


def test_a_single_step_has_no_interval() -> None:
    found = phase(two_decodes(), StepPhase.PREFILL).step_ms
    assert (found.value, found.low, found.high) == (pytest.approx(0.6), None, None)


def test_loads_are_the_unit_from_three_on() -> None:
    """Means of the loads 10, 20, 30: half is t(2, .975) x 10 / sqrt(3), whatever the steps do."""
    loads = [[Made({ATTENTION: mean - 5}), Made({ATTENTION: mean + 5})] for mean in (10, 20, 30)]
    found = phase(trace(loads), StepPhase.DECODE).step_ms
    assert found.low is not None and found.high is not None
    assert found.value == pytest.approx(0.020)
    assert found.high - found.low == pytest.approx(2 * 4.30265 * 0.010 / 3**0.5, rel=1e-4)


def test_shares_of_a_step_add_up_to_one() -> None:
    for one in summarize(simulated(np.random.default_rng(1))).phases:
        assert sum(each.share for each in one.operations) == pytest.approx(1)
        assert sum(each.share for each in one.classes) == pytest.approx(1)


def test_the_timeline_by_hand() -> None:
    """100 + [10 wait, 20 http] + 100, and a second load of 100 + [70 http] + 100."""
    step = Made({ATTENTION: 90.0, "launch_gap": 10.0})
    found = summarize(
        trace([
            [Made(step.times, wait=1e6), Made(step.times, wait=10.0, http=20.0)],
            [Made(step.times, wait=5e5, http=3e5), Made(step.times, http=70.0)],
        ])
    ).timeline  # fmt: skip
    assert found.seconds == pytest.approx(500e-6), "what came before a load is not of it"
    assert (found.num_loads, found.num_steps) == (2, 4)
    assert found.steps_share == pytest.approx(400 / 500)
    assert found.idle_share == pytest.approx(10 / 500)
    assert found.http_share == pytest.approx(90 / 500)
    assert found.unexplained_share == pytest.approx(0)
    assert found.launch_gap_share == pytest.approx(40 / 500)


def test_bound_by_the_slower_of_bytes_and_flops() -> None:
    assert bound_by_memory(10, 9, CEILINGS) is True
    assert bound_by_memory(9, 10, CEILINGS) is False
    assert bound_by_memory(0, 0, CEILINGS) is None, "not known"
    assert bound_by_memory(10, 9, None) is None


def test_without_steps_nothing_is_summed_up() -> None:
    with pytest.raises(DstuneError, match="holds no step"):
        summarize(trace([]))


def test_intervals_of_batches_hold_for_correlated_steps() -> None:
    """95% of 300 single loads of autocorrelated steps (AR(1), .5) cover the truth; at least 88%.

    An interval that took the steps for independent would cover about 74%.
    """
    rng = np.random.default_rng(7)
    num_covered = 0
    for _ in range(300):
        made = simulated(rng, num_loads=1, num_steps=200, load_sd=0.0, correlation=0.5)
        (decode,) = [one for one in summarize(made).phases if one.phase is StepPhase.DECODE]
        rest = next(one for one in decode.operations if one.operation == "rest").time_ms
        assert rest.low is not None and rest.high is not None
        num_covered += rest.low <= 15.0e-3 * float(np.exp(0.1**2 / 2)) <= rest.high
    assert num_covered >= 0.88 * 300
