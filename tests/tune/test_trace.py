"""Traces of a fake target: which loads are kept, joined, interrupted; the deterministic profile."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fakes import TEXT, FakeClock, Recorder
from traced import FakeTracedTarget

from dstune.errors import DstuneError, TargetError, UsageError
from dstune.knobs import KnobValue, complete
from dstune.load.build import build_plan
from dstune.measure.run_folder import RunFolder
from dstune.measure.trace_files import has_trace, read_trace
from dstune.profile.load import parse_profile
from dstune.profile.model import ArrivalKind, Profile
from dstune.stats.operation_diff import diff
from dstune.target.target import Target
from dstune.tune.bench import Setting
from dstune.tune.trace import (
    SMALL_LOAD,
    Outcome,
    TraceJob,
    Tracer,
    begin,
    check_target,
    deterministic,
    trace,
    trace_both,
)

PROFILE = """
name: chat
workload:
  prompt_tokens: {distribution: lognormal, median: 40, sigma: 0.5, max: 200}
  output_tokens: 16
  num_requests: 12
arrivals: {kind: poisson, rate_per_s: 10}
knobs: {max_num_seqs: 8}
"""


def profile(*overrides: str) -> Profile:
    return parse_profile("p.yaml", PROFILE, overrides)


def job(*overrides: str, **more: Any) -> TraceJob:
    one = profile(*overrides)
    return TraceJob(one, complete(one.knobs), **more)


def setting(target: Target, watched: Recorder | None = None) -> Setting:
    clock = FakeClock()
    return Setting(
        lambda _: target, watched or Recorder(), lambda: TEXT, clock.now_ns, clock.read_cpu
    )


def traced(root: Path, target: Target, one: TraceJob | None = None, num_loads: int = 3) -> Outcome:
    asked = one or job()
    return trace(begin(asked, root, ["trace", "p.yaml"], {"cpu": 1}), asked, num_loads,
                 setting(target))  # fmt: skip


def test_every_load_is_recorded_and_the_warm_up_is_not(tmp_path: Path) -> None:
    target = FakeTracedTarget()
    done = traced(tmp_path, target)
    assert done.exit_code == 0
    assert done.trace is not None
    assert [one.load for one in done.trace.steps] == [0] * 4 + [1] * 4 + [2] * 4
    assert target.num_runs == 4 and target.num_resets == 3 and target.num_stops == 1
    warmup, *loads = target.plans
    assert warmup.requests[0].request_id.startswith("warmup")
    assert loads[0] == loads[1] == loads[2], "the same prompts and arrivals"
    assert done.trace.front_cpu_s == pytest.approx(0.3), "of all loads"
    assert len(done.trace.spans) == 1, "of the first load"


def test_the_run_folder_holds_it(tmp_path: Path) -> None:
    done = traced(tmp_path, FakeTracedTarget())
    assert done.folder.name.endswith("-trace-chat")
    folder = RunFolder(done.folder)
    run = folder.read_run()
    assert (run.verb, run.status, run.environment) == ("trace", "finished", {"cpu": 1})
    assert run.verdict is not None
    assert run.verdict.message == "12 steps of 3 loads were traced"
    assert read_trace(done.folder) == done.trace
    (trial,) = folder.trials()
    assert len(trial.repetitions) == 3 and folder.samples("trace")


def test_facts_say_what_was_traced(tmp_path: Path) -> None:
    facts = traced(tmp_path, FakeTracedTarget()).trace.facts  # type: ignore[union-attr]
    assert facts["model"] == "fake" and facts["driver"] == "http"
    assert facts["precision"] == "bf16"
    assert facts["load"]["kind"] == "poisson"  # type: ignore[index]
    assert facts["of the engine"] == "kept"


def test_steps_can_be_limited(tmp_path: Path) -> None:
    found = traced(tmp_path, FakeTracedTarget(), job(most_steps=2)).trace
    assert found is not None
    assert [(one.load, one.step) for one in found.steps] == [(at, no) for at in range(3)
                                                             for no in range(2)]  # fmt: skip
    assert {row.step for row in found.operations} == {0, 1}


def test_an_interrupt_keeps_what_was_recorded(tmp_path: Path) -> None:
    done = traced(tmp_path, FakeTracedTarget(interrupts_at_run=2))
    assert done.exit_code == 130
    assert read_trace(done.folder) == done.trace
    assert {one.load for one in done.trace.steps} == {0}  # type: ignore[union-attr]
    run = RunFolder(done.folder).read_run()
    assert run.status == "interrupted" and run.verdict is not None
    assert run.verdict.message == "what is kept: 4 steps of 1 load were traced"


def test_a_load_that_was_cut_short_is_kept_and_no_further_one_begins(tmp_path: Path) -> None:
    target = FakeTracedTarget(cut_short_at_run=1)
    done = traced(tmp_path, target)
    assert done.exit_code == 130
    assert {one.load for one in done.trace.steps} == {0}  # type: ignore[union-attr]
    assert target.num_runs == 2 and target.num_stops == 1


def test_an_interrupt_before_anything_leaves_no_trace(tmp_path: Path) -> None:
    done = traced(tmp_path, FakeTracedTarget(interrupts_at_run=0))
    assert (done.exit_code, done.trace) == (130, None)
    assert not has_trace(done.folder)


def test_a_failure_is_raised_and_written(tmp_path: Path) -> None:
    def refuses(_: Mapping[str, KnobValue]) -> Exception:
        return TargetError("it died")

    target = FakeTracedTarget(refuses=refuses)
    with pytest.raises(TargetError, match="it died"):
        traced(tmp_path, target)
    (folder,) = tmp_path.iterdir()
    assert RunFolder(folder).read_run().status == "failed"
    with pytest.raises(DstuneError, match="recorded no step"):
        traced(tmp_path, FakeTracedTarget(num_steps=0))


def test_two_jobs_take_turns(tmp_path: Path) -> None:
    order: list[str] = []
    tracers = []
    for name in ("a", "b"):
        target = FakeTracedTarget(before_run=lambda _, name=name: order.append(name))  # type: ignore[misc]
        asked = job()
        folder = begin(asked, tmp_path, [], {})
        tracers.append(Tracer(asked, folder, setting(target)))
    before, after = trace_both(tracers[0], tracers[1], num_loads=4)
    for one in tracers:
        one.close()
    # each warms up before its load
    assert order == [one for side in "abbaabba" for one in (side, side)]
    assert len({one.load for one in before.steps}) == 4
    found = diff(before, after)
    assert found.are_paired, "the facts say so"
    assert (found.matched, found.unit, found.first) == ("steps", "loads", None)


def test_only_embedded_can_be_traced() -> None:
    check_target("embedded")
    for target in ("vllm", "sglang", "http://127.0.0.1:1"):
        with pytest.raises(UsageError, match="nsys") as raised:
            check_target(target)
        assert target in str(raised.value) and "\n" not in str(raised.value)


def test_a_deterministic_profile_is_a_closed_loop_of_what_fits() -> None:
    closed = deterministic(profile())
    assert closed.driver == "offline"
    assert closed.arrivals.kind is ArrivalKind.CONCURRENCY
    assert closed.arrivals.concurrency == 8
    assert deterministic(profile(), {"max_num_seqs": 3}).arrivals.concurrency == 3
    assert deterministic(profile(), {"max_num_seqs": 64}).arrivals.concurrency == 12, "all of them"


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("arrivals={kind: all_at_once}",),
        ("arrivals={kind: ramp, rate_per_s: 2, end_rate_per_s: 9}",),
        ("workload.num_requests=9", "arrivals={kind: concurrency, concurrency: 3, duration: 9s}"),
        ("workload.turns=3", "workload.think_time_s=0.5"),
    ],
)
def test_a_deterministic_profile_asks_the_same(overrides: tuple[str, ...]) -> None:
    one = profile(*overrides)
    closed = deterministic(one)
    assert closed.workload.think_time_s == 0 and closed.arrivals.duration is None
    tokens = list(range(200))
    plans = [build_plan(each, 0, tokens) for each in (one, closed)]
    asked = [[(r.prompt_token_ids, r.output_tokens) for r in plan.requests] for plan in plans]
    if one.workload.think_time_s == 0:
        assert asked[0] == asked[1]
    assert len(asked[0]) == len(asked[1])


def test_a_duration_becomes_a_number_of_requests() -> None:
    text = PROFILE.replace("  num_requests: 12\n", "").replace("10}", "10, duration: 3s}")
    one = parse_profile("p.yaml", text)
    assert one.workload.num_requests == 30
    assert deterministic(one).workload.num_requests == 30


def test_a_recorded_trace_arrives_at_once(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [(0, 20, 4), (5_000, 30, 2), (9_000, 10, 3)]
    path.write_text(
        "".join(
            f'{{"timestamp": {at}, "input_length": {size}, "output_length": {out}, '
            f'"hash_ids": [{at}]}}\n'
            for at, size, out in rows
        )
    )
    one = parse_profile("p.yaml", f"name: t\narrivals: {{kind: trace, path: {path}}}\n"
                                  "workload: {}\n")  # fmt: skip
    plan = build_plan(deterministic(one), 0, list(range(200)))
    assert [request.offset_ns for request in plan.requests] == [0, 5, 9], "nanoseconds"
    assert [len(request.prompt_token_ids) for request in plan.requests] == [20, 30, 10]


def test_the_small_load_is_a_profile() -> None:
    one = parse_profile("small", SMALL_LOAD, ["workload.num_requests=4"])
    assert (one.target, one.model, one.workload.num_requests) == ("embedded", "tiny-deepseek", 4)
    assert dataclasses.replace(TraceJob(one, complete(one.knobs))).most_steps is None
