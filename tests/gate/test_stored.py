"""Verdicts without measuring the baseline again, and over other tools' results."""

from __future__ import annotations

import math
import random

import pytest

from dstune.errors import NotComparable, UsageError
from dstune.gate.plan import GatePlan
from dstune.gate.stored import against_results, against_stored
from dstune.measure.comparison import RunFigures, Session, Subject
from dstune.measure.record import Claim

PLAN = GatePlan()


def run(minute: int, ttft_ms: float, **changes: object) -> RunFigures:
    figures = {"output_tokens_per_s": 1e5 / ttft_ms, "ttft_p50_ms": ttft_ms,
               "ttft_p95_ms": 2 * ttft_ms, "tpot_p95_ms": ttft_ms / 5}  # fmt: skip
    values: dict[str, object] = {
        "name": f"run-{minute}", "started_utc": f"2026-01-01T00:{minute:02d}:00Z", "num_ok": 100,
        "num_failed": 0, "figures": figures, **changes,
    }  # fmt: skip
    return RunFigures.model_validate(values)


def session(name: str, runs: list[RunFigures], **subject: object) -> Session:
    told = {"tool": "dstune", "model": "m", "precision": "bf16", **subject}
    return Session(
        name=name, source=name, started_utc=runs[0].started_utc if runs else "",
        subject=Subject.model_validate(told), runs=tuple(runs),
    )  # fmt: skip


def sides(slowdown: float, num: int, sd: float = 0.01) -> tuple[Session, Session]:
    noise = random.Random(11)
    before, after = [], []
    for pair in range(num):
        before.append(run(4 * pair + pair % 2, 100 * math.exp(noise.gauss(0, sd))))
        late = 100 * (1 + slowdown) * math.exp(noise.gauss(0, sd))
        after.append(run(4 * pair + 1 - pair % 2, late))
    return session("before", before), session("after", after)


def test_results_that_were_made_in_turns_are_judged_as_pairs() -> None:
    failed = against_results(*sides(0.25, 7), PLAN)
    assert (failed.claim, failed.exit_code, failed.num_pairs) == (Claim.FAIL, 1, 5)
    assert not failed.is_advisory and failed.method == "paired"
    passed = against_results(*sides(0.0, 5), PLAN)
    assert (passed.claim, passed.exit_code) == (Claim.PASS, 0)
    doubtful = against_results(*sides(0.06, 12, sd=0.2), PLAN)
    assert (doubtful.claim, doubtful.exit_code, doubtful.num_pairs) == (Claim.INCONCLUSIVE, 3, 12)


def test_blocks_of_runs_are_no_pairs() -> None:
    before = session("before", [run(at, 100) for at in range(5)])
    after = session("after", [run(10 + at, 101) for at in range(5)])
    with pytest.raises(NotComparable, match=r"not made in turns.* --stored"):
        against_results(before, after, PLAN)


def test_runs_without_times_are_paired_in_their_order_and_that_is_said() -> None:
    before, after = sides(0.25, 5)
    bare = [one.model_copy(update={"started_utc": ""}) for one in before.runs]
    result = against_results(before.model_copy(update={"runs": tuple(bare)}), after, PLAN)
    assert any("in their order" in one for one in result.notes)


def test_too_few_pairs_and_other_faults() -> None:
    before, after = sides(0.25, 4)
    with pytest.raises(UsageError, match=r"too few pairs of runs, 4: .* 5, 8 or 12"):
        against_results(before, after, PLAN)
    before, after = sides(0.25, 5)
    other = after.model_copy(update={"subject": Subject(tool="dstune", model="n")})
    with pytest.raises(NotComparable, match="model"):
        against_results(before, other, PLAN)
    lost = (after.runs[0].model_copy(update={"num_failed": 3}), *after.runs[1:])
    with pytest.raises(NotComparable, match=r"3 of 503 requests of after failed \(in run-"):
        against_results(before, after.model_copy(update={"runs": lost}), PLAN)
    bare = {name: value for name, value in after.runs[2].figures.items() if "tpot" not in name}
    without = (*after.runs[:2], after.runs[2].model_copy(update={"figures": bare}), *after.runs[3:])
    with pytest.raises(NotComparable, match=r"no value of tpot_p95_ms.*--metric"):
        against_results(before, after.model_copy(update={"runs": without}), PLAN)


def test_a_stored_verdict_is_advisory_in_every_place() -> None:
    noise = random.Random(7)
    earlier = [session(f"e{at}", [run(at, 100 * math.exp(noise.gauss(0, 0.02)))])
               for at in range(12)]  # fmt: skip
    result = against_stored(earlier, session("now", [run(30, 140)]), PLAN)
    assert (result.claim, result.exit_code, result.is_advisory) == (Claim.FAIL, 1, True)
    assert result.message.startswith("advisory: fail: ")
    assert result.earlier == tuple(f"e{at}" for at in range(12))
    same = against_stored(earlier, session("now", [run(30, 100)]), PLAN)
    assert (same.claim, same.exit_code) == (Claim.PASS, 0)


def test_one_earlier_session_decides_nothing() -> None:
    result = against_stored([session("e", [run(0, 100)])], session("now", [run(9, 300)]), PLAN)
    assert (result.claim, result.exit_code) == (Claim.INCONCLUSIVE, 3)
    assert all("session" in one.note for one in result.metrics)
