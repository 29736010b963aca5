"""A whole gate on the real engine, slowed on purpose: it fails, and names what got slower."""

from __future__ import annotations

import sys
from pathlib import Path

from fakes import Recorder

from dstune.gate import gate
from dstune.gate.plan import GatePlan, GateSetting
from dstune.gate.sides import Side, started_by
from dstune.knobs import complete
from dstune.load.corpus import corpus_text
from dstune.measure.comparison import MetricChange
from dstune.measure.host import CpuReading
from dstune.measure.record import Claim
from dstune.measure.trace_files import has_trace
from dstune.profile.load import parse_profile

PROFILE = """
name: slowed
scenario: high_throughput
driver: offline
workload: {prompt_tokens: 32, output_tokens: 16, num_requests: 8, shared_prefix_tokens: 768}
arrivals: {kind: concurrency, concurrency: 4}
knobs: {max_num_seqs: 4, max_model_len: 1024}
"""
SLOWED = f"{sys.executable} -m dstune.server --slow latent_attention=40"


class Quiet(Recorder):
    """Watches and keeps nothing."""

    def pair(self, number: int, most: int, eta_s: float | None) -> None: ...
    def looked(self, changes: tuple[MetricChange, ...]) -> None: ...


def idle_host() -> CpuReading:
    """Other tests may run beside this one; whether a host is quiet is tested elsewhere."""
    return CpuReading(1.0, 0.0, 0.0, 0.0, 2)


def test_an_attention_that_takes_many_times_as_long_fails_and_is_named(tmp_path: Path) -> None:
    profile = parse_profile("slowed.yaml", PROFILE)
    knobs = complete(profile.knobs)
    sides = Side("baseline", profile, knobs), Side("candidate", profile, knobs, started_by(SLOWED))
    folder = gate.begin(*sides, tmp_path, [], {})
    setting = GateSetting(
        lambda side, traces: side.open(folder.log_path, None, traces), Quiet(), corpus_text,
        read_cpu=idle_host,
    )  # fmt: skip
    result = gate.carry_out(folder, *sides, GatePlan(quality_windows=2, seed=1), setting)
    assert result.claim is Claim.FAIL, result.message
    assert result.explanation[0].operation == "latent_attention", result
    assert "latent_attention explains" in result.message
    assert result.quality is not None and result.quality.change.value == 0.0
    assert has_trace(folder.path / "trace-baseline") and has_trace(folder.path / "trace-candidate")
