"""What a host's noise is found to be, and kept."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dstune.errors import DstuneError
from dstune.gate.calibration import foresight, known, learn, path_of
from dstune.gate.plan import GatePlan
from dstune.gate.sides import Side
from dstune.gate.stored import against_results
from dstune.knobs import complete
from dstune.measure.comparison import GateResult, RunFigures, Session, Subject, Thresholds
from dstune.profile.load import parse_profile

PROFILE = parse_profile(
    "short.yaml", "name: short\nworkload: {prompt_tokens: 16, output_tokens: 8, num_requests: 12}"
)
SIDE = Side("candidate", PROFILE, complete({}))
HOST = {"cpu": {"model": "c"}}


def compared(ratios: list[float]) -> GateResult:
    """Five pairs whose second half is that many times the first."""
    subject = Subject(tool="dstune", model="m")

    def runs(values: list[float]) -> Session:
        made = [
            RunFigures(name=str(at), started_utc=f"2026-01-01T00:0{at}:00Z", num_ok=9, num_failed=0,
                       figures={"output_tokens_per_s": 100 / one, "ttft_p50_ms": one,
                                "ttft_p95_ms": one, "tpot_p95_ms": one})
            for at, one in enumerate(values)
        ]  # fmt: skip
        return Session(name="s", source="s", started_utc="", subject=subject, runs=tuple(made))

    return against_results(runs([10.0] * 5), runs([10 * one for one in ratios]), GatePlan())


def test_the_spread_is_that_of_pairs_around_no_difference(tmp_path: Path) -> None:
    result = compared([1.1, 1 / 1.1, 1.1, 1 / 1.1, 1.0])
    found = learn(SIDE, result, HOST, tmp_path)
    assert found.metrics["ttft_p50_ms"].pair_sd == pytest.approx(
        math.sqrt(4 * math.log(1.1) ** 2 / 5)
    )
    assert found.metrics["ttft_p50_ms"].num_pairs == 5
    assert (found.num_comparisons, found.num_false_alarms) == (1, 0)
    assert known(path_of(SIDE, HOST, tmp_path)) == found


def test_comparisons_add_up_and_false_alarms_are_counted(tmp_path: Path) -> None:
    learn(SIDE, compared([1.0, 1.01, 1.0, 0.99, 1.0]), HOST, tmp_path)
    alarming = compared([1.2, 1.21, 1.2, 1.19, 1.2])
    found = learn(SIDE, alarming, HOST, tmp_path)
    assert (found.num_comparisons, found.num_false_alarms) == (2, 1)
    assert found.metrics["tpot_p95_ms"].num_pairs == 10
    other = learn(SIDE, alarming, {"cpu": {"model": "d"}}, tmp_path)
    assert other.num_comparisons == 1


def test_what_a_gate_can_see_is_said_beforehand(tmp_path: Path) -> None:
    assert "dstune gate calibrate" in foresight(None, Thresholds())
    found = learn(SIDE, compared([1.01, 0.99, 1.01, 0.99, 1.0]), HOST, tmp_path)
    said = foresight(found, Thresholds())
    assert "pair sd, 5 pairs" in said and "20% in 100%" in said


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = path_of(SIDE, HOST, tmp_path)
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(DstuneError, match=f"{path} is damaged: remove it"):
        known(path)
