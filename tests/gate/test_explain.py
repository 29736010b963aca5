"""What a failure is explained by, from traces by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from gate_results import FAILED
from traces import Made, trace

from dstune.errors import TargetError
from dstune.gate import explain
from dstune.gate.plan import GateSetting
from dstune.gate.sides import Side, Source
from dstune.knobs import complete
from dstune.measure.comparison import GateResult
from dstune.measure.run_folder import RunFolder
from dstune.profile.load import parse_profile
from dstune.stats.operation_diff import OperationDiff, diff

PROFILE = parse_profile(
    "short.yaml", "name: short\nworkload: {prompt_tokens: 16, output_tokens: 8, num_requests: 12}"
)
SIDES = (Side("baseline", PROFILE, complete({})), Side("candidate", PROFILE, complete({})))


def loads(attention: float, rest: float = 50.0) -> list[list[Made]]:
    """Three loads of ten steps whose times vary by a percent."""
    return [
        [Made({"latent_attention": attention * (1 + 0.01 * (step % 2)), "experts": 40.0}, rest)
         for step in range(10)]
        for _ in range(3)
    ]  # fmt: skip


def explained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: OperationDiff | Exception,
    result: GateResult = FAILED,
) -> GateResult:  # fmt: skip
    def traced(*_: object) -> OperationDiff:
        if isinstance(found, Exception):
            raise found
        return found

    class Silent:
        def notes(self, text: str) -> None: ...

    monkeypatch.setattr(explain, "_traced", traced)
    setting = GateSetting(lambda side, traces: None, Silent(), str)  # type: ignore[arg-type,return-value]
    return explain.explain(result, RunFolder(tmp_path), SIDES, setting)


def test_the_operation_that_got_slower_is_named_with_its_share(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = diff(trace(loads(20.0)), trace(loads(60.0)), are_paired=True)
    result = explained(monkeypatch, tmp_path, found)
    assert result.explanation[0].operation == "latent_attention"
    assert result.message == f"{FAILED.message}; latent_attention explains 100% of it"


def test_a_faster_trace_explains_nothing_and_the_queue_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = diff(trace(loads(60.0)), trace(loads(20.0)), are_paired=True)
    waits = {"baseline": 0.04, "candidate": 40.0}
    changes = {
        name: side.model_copy(update={"runs": tuple(
            run.model_copy(update={"figures": {**run.figures, "queue_p50_ms": waits[name]}})
            for run in side.runs
        )})
        for name, side in (("baseline", FAILED.baseline), ("candidate", FAILED.candidate))
    }  # fmt: skip
    result = explained(monkeypatch, tmp_path, found, FAILED.model_copy(update=changes))
    assert result.message == FAILED.message and result.explanation == ()
    assert result.notes[-1] == (
        "steps of the same work are not slower beyond noise: requests wait 40 ms for their first "
        "step, 0.04 before"
    )


def test_a_slowdown_between_the_operations_is_not_put_on_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = diff(trace(loads(20.0)), trace(loads(20.0, rest=90.0)), are_paired=True)
    result = explained(monkeypatch, tmp_path, found)
    assert "what no operation covers (Python, torch's own) explains 100% of it" in result.message


def test_what_cannot_be_traced_leaves_the_verdict_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result = explained(monkeypatch, tmp_path, TargetError("unknown command 'trace'"))
    assert result.claim is FAILED.claim and result.message == FAILED.message
    assert result.notes[-1] == "not explained: unknown command 'trace'"
    server = Side("candidate", PROFILE, complete({}), Source(url="http://x"))
    setting = GateSetting(lambda side, traces: None, None, str)  # type: ignore[arg-type,return-value]
    other = explain.explain(FAILED, RunFolder(tmp_path), (SIDES[0], server), setting)
    assert other.notes[-1] == "not explained: only dstune's own engine can be traced"
