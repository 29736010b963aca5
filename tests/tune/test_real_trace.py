"""Traces for real: the bundled model, and a slowdown planted in its attention is named first.

The loads of both sides take turns, so that what else the machine does meets both. Nothing is
claimed about times.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dstune.knobs import complete
from dstune.load.corpus import corpus_text
from dstune.measure.operation_trace import OpClass, StepPhase, Trace
from dstune.measure.run_folder import RunFolder
from dstune.measure.trace_files import read_trace, write_trace
from dstune.profile.load import parse_profile
from dstune.report.timeline import chrome_trace
from dstune.stats.operation_diff import diff, shares_of
from dstune.stats.operations import summarize
from dstune.target.embedded import OWN_PROGRAM, EngineProgram
from dstune.tune.bench import Setting
from dstune.tune.trace import TraceJob, Tracer, deterministic, open_traced, trace_both

from fakes import Recorder  # isort: skip

PROFILE = """
name: real
workload: {prompt_tokens: 16, output_tokens: 64, num_requests: 16, shared_prefix_tokens: 768}
arrivals: {kind: poisson, rate_per_s: 50}
knobs:
  max_num_seqs: 16
  max_model_len: 1024
  kv_cache_memory_bytes: 67108864
  max_num_batched_tokens: 784
"""
# one long prefix that the first step computes and the others share: so attention is a good part of
# what a load takes, in steps that are many and short, which suits a busy machine
NUM_LOADS = 8
ATTENTION = "latent_attention"
SLOW = EngineProgram(command=(*OWN_PROGRAM.command, "--slow", f"{ATTENTION}=1.0"))


def tracer(root: Path, name: str, program: EngineProgram) -> Tracer:
    profile = deterministic(parse_profile("p.yaml", PROFILE))
    folder = RunFolder.create(root, "trace", name)
    setting = Setting(
        lambda one: open_traced(one, folder.log_path, program), Recorder(), corpus_text
    )
    return Tracer(TraceJob(profile, complete(profile.knobs), is_closed=True), folder, setting)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Trace]:
    root = tmp_path_factory.mktemp("traces")
    sides = tracer(root, "as-it-is", OWN_PROGRAM), tracer(root, "slow", SLOW)
    try:
        return trace_both(*sides, NUM_LOADS)
    finally:
        for one in sides:
            one.close()


def test_a_planted_slowdown_is_named_first_with_its_share(traces: tuple[Trace, Trace]) -> None:
    found = diff(*traces, are_paired=True)
    assert (found.matched, found.unit) == ("steps", "loads"), found.notes
    assert found.first is not None and found.first.operation == ATTENTION
    named = shares_of(found)[0]
    assert (named.operation, named.op_class) == (ATTENTION, OpClass.ATTENTION.value)
    assert named.share.value == pytest.approx(1, abs=0.15)
    assert named.change.value is not None and named.change.value > 0.5


def test_every_load_computes_the_same_steps(traces: tuple[Trace, Trace]) -> None:
    made = [
        [
            (one.phase, one.num_prefill_tokens, one.num_decode_tokens, one.num_context_tokens)
            for one in side.steps
            if one.load == load
        ]
        for side in traces
        for load in range(NUM_LOADS)
    ]
    assert all(one == made[0] for one in made)
    # the first of a request's 64 tokens comes of its prefill
    assert sum(one[2] for one in made[0]) == 16 * 63


def test_the_summary_adds_up(traces: tuple[Trace, Trace]) -> None:
    summary = summarize(traces[0])
    assert StepPhase.DECODE in {one.phase for one in summary.phases}
    for phase in summary.phases:
        assert sum(one.share for one in phase.operations) == pytest.approx(1)
        assert {OpClass.ATTENTION, OpClass.FFN, OpClass.SCHEDULING, OpClass.SAMPLING} <= {
            one.op_class for one in phase.classes
        }
        assert all(one.share >= 0 for one in phase.operations), "no more than a step"
        for one in phase.operations:
            if one.op_class in (OpClass.ATTENTION, OpClass.FFN):
                assert one.num_bytes > 0 and one.is_memory_bound is not None
    line = summary.timeline
    shares = (line.steps_share, line.idle_share, line.http_share, line.unexplained_share)
    assert sum(shares) == pytest.approx(1)
    assert line.steps_share > 0.5 and line.unexplained_share > -0.01


def test_it_is_written_and_shown(traces: tuple[Trace, Trace], tmp_path: Path) -> None:
    write_trace(tmp_path, traces[0])
    assert read_trace(tmp_path) == traces[0]
    spans = [one for one in chrome_trace(traces[0])["traceEvents"] if one.get("cat") == "attention"]
    assert spans and all(one["dur"] > 0 for one in spans)
