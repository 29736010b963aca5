"""The embedded target's traces, scores and programs, over the pipe and behind HTTP."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dstune import knobs
from dstune.errors import UsageError
from dstune.load.plan import LoadPlan, PlannedRequest
from dstune.measure.operation_trace import OpClass, StepPhase, Trace
from dstune.target.embedded import EmbeddedTarget, EngineProgram

SERVER = (sys.executable, "-m", "dstune.server")
KNOBS = knobs.complete(
    {"max_model_len": 256, "kv_cache_memory_bytes": 16 << 20, "precision": "fp32"}
)
WINDOWS = [list(range(40, 120)), list(range(50, 100))]


def plan(count: int = 4, output_tokens: int = 6) -> LoadPlan:
    return LoadPlan(
        tuple(
            PlannedRequest(
                f"r{index}", 0, tuple(range(index, 20 + 2 * index)), output_tokens, seed=index
            )
            for index in range(count)
        )
    )


@pytest.fixture(scope="module", params=["http", "offline"])
def traced(request: pytest.FixtureRequest) -> Iterator[EmbeddedTarget]:
    program = EngineProgram((*SERVER, "--slow", "latent_attention=0.1"), traces=True)
    with EmbeddedTarget("tiny-deepseek", driver=request.param, program=program) as one:
        one.configure(KNOBS)
        yield one


def trace_of(target: EmbeddedTarget) -> Trace:
    target.run(plan())
    return target.take_trace()


def test_a_trace_is_of_the_last_load(traced: EmbeddedTarget) -> None:
    traced.run(plan(1))
    traced.reset_caches()
    result = traced.run(plan())
    trace = traced.take_trace()
    assert len(trace.steps) == len(result.steps)
    assert [one.step for one in trace.steps] == list(range(len(trace.steps)))
    for step, sample in zip(trace.steps, result.steps, strict=True):
        assert step.start_ns == sample.start_ns and 0 < step.duration_ns <= sample.duration_ns
        assert step.num_decode_tokens == sample.num_decode_tokens
        assert step.num_prefill_tokens == sample.num_prefill_tokens
    assert sum(one.num_prefill_tokens for one in trace.steps) == 20 + 21 + 22 + 23
    assert traced.take_trace().steps == ()


def test_steps_are_their_operations_and_what_lies_between(traced: EmbeddedTarget) -> None:
    trace = trace_of(traced)
    assert trace.steps[0].phase is StepPhase.PREFILL
    assert trace.steps[-1].phase is StepPhase.DECODE
    for step in trace.steps:
        mine = [one for one in trace.operations if one.step == step.step]
        assert sum(one.time_ns for one in mine) <= step.duration_ns
        assert {one.operation for one in mine} >= {"schedule", "experts", "linear.lm_head"}
    for before, after in zip(trace.steps, trace.steps[1:], strict=False):
        between = after.start_ns - before.start_ns - before.duration_ns
        assert 0 <= after.wait_ns + after.http_ns <= between
    classes = {one.op_class for one in trace.operations}
    assert OpClass.ATTENTION in classes and OpClass.SCHEDULING in classes
    assert {one.op_class for one in trace.spans} == classes


def test_what_the_device_reaches_and_the_front_takes(traced: EmbeddedTarget) -> None:
    trace = trace_of(traced)
    assert trace.ceilings is not None and trace.device.startswith("cpu")
    assert trace.ceilings.flops_per_s > 0
    assert (trace.front_cpu_s is None) == (traced._load is None)
    assert trace.front_cpu_s is None or trace.front_cpu_s > 0


def test_scores(traced: EmbeddedTarget) -> None:
    scores = traced.score(WINDOWS, 32)
    assert len(scores) == 2 and all(one > 0 for one in scores)
    assert traced.score(WINDOWS[:1], 32) == pytest.approx(scores[:1], abs=1e-5)
    with pytest.raises(UsageError, match="cannot be scored"):
        traced.score([list(range(60)) * 5], 32)


@pytest.mark.parametrize("driver", ["http", "offline"])
def test_a_bad_slowdown_is_one_line(driver: str) -> None:
    for bad in ([], ["step"], ["nothing=1"]):
        program = EngineProgram((*SERVER, "--slow", *bad))
        with pytest.raises(UsageError, match="--slow") as refused:
            EmbeddedTarget("tiny-deepseek", driver=driver, program=program)  # type: ignore[arg-type]
        assert "\n" not in str(refused.value)


def test_a_program_of_another_folder_and_environment(tmp_path: Path) -> None:
    """What is started is the given program, where and with what it is said."""
    (tmp_path / "other.py").write_text(
        "import os, runpy, sys\n"
        "open('started', 'w').write(os.environ['DSTUNE_OTHER'])\n"
        "sys.argv = ['dstune.server', *sys.argv[1:]]\n"
        "runpy.run_module('dstune.server', run_name='__main__')\n"
    )
    program = EngineProgram(
        (sys.executable, "other.py"),
        cwd=tmp_path,
        env={"DSTUNE_OTHER": "yes", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with EmbeddedTarget("tiny-deepseek", driver="offline", program=program) as target:
        target.configure(KNOBS)
        assert len(target.run(plan(1)).samples) == 1
    assert (tmp_path / "started").read_text() == "yes"


def test_what_does_not_trace_has_no_trace() -> None:
    with EmbeddedTarget("tiny-deepseek", driver="offline") as target:
        target.configure(KNOBS)
        with pytest.raises(UsageError, match="nothing is recorded"):
            target.take_trace()
