"""What the engine did, each figure worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from samples import sample

from dstune.measure.sample import Sample, Status, StepSample
from dstune.stats.figures import figures_of
from dstune.stats.metrics import Loop
from dstune.stats.step_figures import prefix_figures, queue_figures, step_figures


def step(
    ms: float, prefill: int, decode: int, running: int, free: int, preempted: int = 0
) -> StepSample:
    return StepSample(
        trial_id="t", repetition=0, start_ns=0, duration_ns=round(ms * 1e6),
        num_prefill_tokens=prefill, num_decode_tokens=decode, num_running=running, num_waiting=0,
        num_free_blocks=free, num_preempted=preempted, num_cached_tokens=0,
    )  # fmt: skip


STEPS = [
    step(30, prefill=64, decode=0, running=1, free=80),
    step(20, prefill=16, decode=1, running=2, free=70, preempted=2),
    step(6, prefill=0, decode=3, running=3, free=50),
    step(4, prefill=0, decode=2, running=2, free=90, preempted=1),
]


def values(steps: list[StepSample], num_blocks: int | None) -> dict[str, float | None]:
    return {name: one.value for name, one in step_figures(steps, num_blocks).items()}


def test_every_figure_of_four_steps() -> None:
    assert values(STEPS, 100) == {
        "batch_size_mean": 2,  # (1 + 2 + 3 + 2) / 4
        "batch_size_p50": 2,  # of 1, 2, 2, 3
        "batch_size_p99": pytest.approx(2.97),  # the 2.97th gap of 1, 2, 2, 3
        "tokens_per_step_mean": 21.5,  # (64 + 17 + 3 + 2) / 4
        "step_p50_ms": 13,  # between 6 and 20
        "step_p99_ms": pytest.approx(29.7),
        "prefill_time_share": pytest.approx(50 / 60),
        "num_preempted": 3,
        "kv_use_mean": pytest.approx((0.2 + 0.3 + 0.5 + 0.1) / 4),
        "kv_use_max": 0.5,
    }


def test_a_step_that_ran_nothing_is_no_step() -> None:
    idle = step(1000, prefill=0, decode=0, running=0, free=0, preempted=5)
    assert values([*STEPS, idle], 100) == values(STEPS, 100)
    assert values([idle], 100) == values([], 100) == {}


def test_without_the_number_of_blocks_their_use_is_unknown() -> None:
    with_blocks, without = values(STEPS, 100), values(STEPS, None)
    assert set(with_blocks) - set(without) == {"kv_use_mean", "kv_use_max"}


def test_steps_that_took_no_time_have_no_share_of_it() -> None:
    assert values([step(0, 1, 0, 1, 1)], 2)["prefill_time_share"] is None


def test_steps_claim_no_interval() -> None:
    assert all(one.low is one.high is None for one in step_figures(STEPS * 100, 100).values())


def waited(ms: float | None, **changes: object) -> Sample:
    queue_ns = None if ms is None else round(ms * 1e6)
    return replace(sample(tokens_ms=[100, 110]), queue_ns=queue_ns, **changes)  # type: ignore[arg-type]


def test_queue_waits_are_percentiles_of_requests() -> None:
    """0 to 100 ms, one request each: the p-th percentile is p ms."""
    found = queue_figures([waited(ms) for ms in range(101)])
    assert {name: one.value for name, one in found.items()} == {
        "queue_p50_ms": 50, "queue_p90_ms": pytest.approx(90), "queue_p99_ms": pytest.approx(99),
    }  # fmt: skip
    assert found["queue_p50_ms"].low is not None and found["queue_p99_ms"].high is None


def test_waits_that_nobody_told_are_no_zeros() -> None:
    assert queue_figures([waited(None)]) == {} == queue_figures([])
    found = queue_figures([waited(None), waited(8), waited(4, status=Status.TIMEOUT)])
    assert found["queue_p50_ms"].value == 8


def test_prefix_hits_are_a_share_of_the_prompt_tokens() -> None:
    """48 of 96 and 0 of 64; a request that does not tell is in neither."""
    told = [
        waited(0, prompt_tokens=96, cached_tokens=48),
        waited(0, prompt_tokens=64, cached_tokens=0),
        waited(0, prompt_tokens=1000, cached_tokens=None),
        waited(0, prompt_tokens=1000, cached_tokens=1000, status=Status.FAILED),
    ]
    assert prefix_figures(told)["prefix_hit_share"].value == pytest.approx(48 / 160)
    assert prefix_figures(told[2:]) == {} == prefix_figures([])


def test_they_stand_among_the_figures_of_a_trial_for_normal_requests() -> None:
    hostile = replace(waited(500, cached_tokens=10), kind="overlong_text")
    normal = waited(2, prompt_tokens=10, cached_tokens=5)
    figures = figures_of([[normal, hostile]], Loop.BATCH, [], STEPS, 100)
    assert figures["queue_p99_ms"].value == 2
    assert figures["prefix_hit_share"].value == 0.5
    assert figures["kv_use_max"].value == 0.5
    assert "batch_size_mean" not in figures_of([[normal]], Loop.BATCH, [])
