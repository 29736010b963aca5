"""A traced load of the bundled model: whether every kernel finds the operation that it is for."""

from __future__ import annotations

import tempfile
from pathlib import Path

from fakes import Recorder

from dstune.knobs import complete
from dstune.load.corpus import corpus_text
from dstune.measure.operation_trace import OpClass, StepPhase
from dstune.measure.run_folder import RunFolder
from dstune.profile.load import parse_profile
from dstune.stats.operations import TraceSummary, summarize
from dstune.tune.bench import Setting
from dstune.tune.trace import TraceJob, Tracer, deterministic, open_traced

PROFILE = """
name: traced
workload: {prompt_tokens: 64, output_tokens: 16, num_requests: 8}
arrivals: {kind: concurrency, concurrency: 8}
knobs: {max_num_seqs: 8, max_model_len: 256}
"""
EXPECTED = (OpClass.ATTENTION, OpClass.PROJECTION, OpClass.FFN, OpClass.NORM_ROPE,
            OpClass.KV_WRITE, OpClass.HEAD, OpClass.SAMPLING, OpClass.SCHEDULING)  # fmt: skip
MOST_OTHER = 0.5  # of a decode step: Python on a CPU; on a GPU torch's own small kernels


def trace_summary() -> TraceSummary:
    """What a closed loop of the bundled model comes to, on the device at hand."""
    profile = deterministic(parse_profile("traced.yaml", PROFILE))
    with tempfile.TemporaryDirectory() as root:
        folder = RunFolder.create(Path(root), "trace", profile.name)
        setting = Setting(lambda one: open_traced(one, folder.log_path), Recorder(), corpus_text)
        tracer = Tracer(TraceJob(profile, complete(profile.knobs), True), folder, setting)
        try:
            tracer.record(3)
            return summarize(tracer.trace())
        finally:
            tracer.close()


def decode_shares(found: TraceSummary) -> dict[OpClass, float]:
    """Each class's share of a decode step."""
    phase = next(one for one in found.phases if one.phase is StepPhase.DECODE)
    return {one.op_class: one.share for one in phase.classes}


def faults(found: TraceSummary) -> list[str]:
    """What is wrong with it; empty where every class has its time."""
    shares = decode_shares(found)
    missing = [one.value for one in EXPECTED if not shares.get(one, 0.0) > 0]
    said = [f"trace: no time for {', '.join(missing)} in decode steps"] if missing else []
    if shares.get(OpClass.OTHER, 0.0) > MOST_OTHER:
        said.append(f"trace: {shares[OpClass.OTHER]:.0%} of a decode step belongs to no operation")
    return said
