"""One figure over runs on disk: rows, groups, marks, and what is passed over."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from fakes import FakeTarget
from measured import Bank, edit_run, edit_trials, profile, rename

from dstune.errors import UsageError
from dstune.gate.accept import accept
from dstune.gate.history import history
from dstune.gate.sessions import read_sessions
from dstune.measure.history import History, HistoryRow
from dstune.measure.record import Remark, RemarkCode, TrialRecord
from dstune.measure.run_folder import RunFolder
from dstune.profile.model import Profile

METRIC = "tpot_p50_ms"


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    return Bank(tmp_path / "reports")


def followed(bank: Bank, metric: str = METRIC, profile: str | None = None, *names: str) -> History:
    return history(bank.root, bank.root / "baselines", metric, profile, names)


def only(found: History) -> tuple[HistoryRow, ...]:
    (group,) = found.groups
    return group.rows


def dated(folder: RunFolder, name: str, day: int) -> RunFolder:
    moved = rename(folder, name)
    edit_run(moved, started_utc=f"2026-01-{day:02d}T00:00:00Z")
    return moved


def with_seqs(num: int) -> Profile:
    """A step takes 4 + num / 2 ms, so that is the time per token."""
    return profile(f"knobs.max_num_seqs={num}", "search={}")


def test_rows_of_every_verb_oldest_first(bank: Bank) -> None:
    dated(bank.loadtest(with_seqs(8)), "tested", 3)
    dated(bank.sweep(profile("slo={tpot_p99_ms: 5}", "search={max_num_seqs: [2]}")), "swept", 1)
    dated(bank.gate(with_seqs(4), [("p01-baseline", 0), ("p01-candidate", 0)]), "compared", 2)
    rows = only(followed(bank))
    assert [(one.name, one.verb, one.num_runs) for one in rows] == [
        ("swept", "sweep", 3),
        ("compared", "gate", 1),
        ("tested", "loadtest", 1),
    ]
    assert [one.value.value for one in rows] == pytest.approx([5.0, 6.0, 8.0])
    assert [one.configuration for one in rows] == [
        {"max_num_seqs": 2}, {"max_num_seqs": 4}, {"max_num_seqs": 8},
    ]  # fmt: skip
    assert {one.revision for one in rows} == {"1111111111111111"}
    assert rows[1].value.low is None, "a single run has no spread"
    assert not any(one.is_change or one.is_accepted or one.doubt for one in rows)


def test_the_interval_is_that_of_the_mean_logarithm_over_runs(bank: Bank) -> None:
    folder = bank.sweep(profile(), FakeTarget(bank.clock, noise=0.2))
    (session,) = read_sessions(str(folder.path), bank.root)
    logs = [math.log(one.figures[METRIC]) for one in session.runs]
    mean = sum(logs) / 3
    variance = sum((one - mean) ** 2 for one in logs) / 2
    half = 4.302653 * (variance / 3) ** 0.5  # Student's t of 2 degrees of freedom at 97.5%
    (row,) = only(followed(bank))
    assert row.value.value == pytest.approx(math.exp(mean))
    assert row.value.low == pytest.approx(math.exp(mean - half), rel=1e-6)
    assert row.value.high == pytest.approx(math.exp(mean + half), rel=1e-6)
    (row,) = only(followed(bank, "queue_p50_ms"))
    assert (row.value.value, row.value.low) == (0.0, 0.0), "no logarithm of 0"


def test_what_cannot_be_compared_stands_in_groups_of_its_own(bank: Bank) -> None:
    gpus = ["NVIDIA H200, 143771 MiB, 570.86"]
    for at, folder in enumerate(
        (
            bank.loadtest(profile()),
            bank.loadtest(profile("knobs.precision=int8")),
            bank.loadtest(profile(), gpus=gpus),
            bank.loadtest(profile("workload.num_requests=13")),
            bank.loadtest(profile("name=other")),
            bank.loadtest(profile("workload.seed=7")),
        )
    ):
        dated(folder, f"r{at}", at + 1)
    found = followed(bank)
    names = [[row.name for row in group.rows] for group in found.groups]
    assert names == [["r0", "r5"], ["r1"], ["r2"], ["r3"], ["r4"]]
    first, int8, gpu, _, other = found.groups
    assert (first.profile, first.model, first.precision) == ("chat", "fake", "bf16")
    assert first.machine == "2 cores of Fake 9000" and gpu.machine == "NVIDIA H200"
    assert first.load.startswith("12 requests") and "20/s" in first.load
    assert int8.precision == "int8" and other.profile == "other"
    assert first.host == int8.host != gpu.host
    chosen = followed(bank, METRIC, "other")
    assert [row.name for group in chosen.groups for row in group.rows] == ["r4"]


def test_other_weights_under_the_same_name_are_told_apart(bank: Bank) -> None:
    def other(trial: TrialRecord) -> TrialRecord:
        return trial.model_copy(update={"model": {"name": "fake", "digest": "b" * 64}})

    dated(bank.loadtest(profile()), "first", 1)
    edit_trials(dated(bank.loadtest(profile()), "second", 2), other)
    models = [group.model for group in followed(bank).groups]
    assert models == ["fake (fake)", f"fake ({'b' * 12})"]


def series(bank: Bank, seqs: Iterable[int]) -> None:
    for at, num in enumerate(seqs):
        dated(bank.loadtest(with_seqs(num)), f"r{at:02d}", at + 1)


def test_a_new_level_is_marked_where_it_begins(bank: Bank) -> None:
    series(bank, [8, 9, 8, 9, 8, 9, 20, 21, 20, 21, 20, 21])
    found = followed(bank)
    assert [row.name for row in only(found) if row.is_change] == ["r06"]
    assert found.groups[0].note == ""


def test_an_even_series_has_no_mark(bank: Bank) -> None:
    series(bank, [8, 9, 8, 9, 9, 8, 9, 8, 9, 8])
    assert not any(row.is_change for row in only(followed(bank)))


def test_too_few_sessions_or_zeros_are_told(bank: Bank) -> None:
    series(bank, [8] * 3)
    (group,) = followed(bank).groups
    assert group.note == "a change of level shows from 8 sessions on; 3 count so far"
    for at in range(3, 8):
        dated(bank.loadtest(with_seqs(8)), f"r{at:02d}", at + 1)
    (group,) = followed(bank, "queue_p50_ms").groups  # nobody waited
    assert group.note == "no change of level is looked for, since some values are 0"


def test_doubtful_sessions_are_shown_and_carry_no_change(bank: Bank) -> None:
    def doubted(trial: TrialRecord) -> TrialRecord:
        remark = Remark(code=RemarkCode.HOST_CONTENDED, message="others")
        repetitions = [one.model_copy(update={"remarks": (remark,)}) for one in trial.repetitions]
        return trial.model_copy(update={"repetitions": tuple(repetitions)})

    series(bank, [8, 9, 8, 9, 8, 9, 8, 9, 20, 21, 20, 21, 20, 21])
    assert [row.name for row in only(followed(bank)) if row.is_change] == ["r08"]
    for at in range(8, 14):
        edit_trials(RunFolder(bank.root / f"r{at:02d}"), doubted)
    rows = only(followed(bank))
    assert [row.doubt for row in rows] == [*[""] * 8, *["host_contended: others"] * 6]
    assert not any(row.is_change for row in rows)


def test_an_accepted_run_is_one_row_also_when_its_folder_is_gone(bank: Bank) -> None:
    kept, gone = (dated(bank.loadtest(profile()), name, day) for name, day in (("k", 1), ("g", 2)))
    for folder in (kept, gone):
        accept(str(folder.path), bank.root, bank.root / "baselines")
    shutil.rmtree(gone.path)
    rows = only(followed(bank))
    assert [(one.name, one.verb, one.is_accepted) for one in rows] == [
        ("k", "loadtest", True),
        ("g", "baseline", True),
    ]
    (bank.root / "baselines" / "engine.exact.json").write_text("{}")
    assert len(only(followed(bank))) == 2, "exact figures are no sessions"


def test_what_is_damaged_is_passed_over_with_the_reason(bank: Bank) -> None:
    dated(bank.loadtest(profile()), "good", 1)
    torn = dated(bank.loadtest(profile()), "torn", 2)
    (torn.path / "run.json").write_text("{")
    broken = dated(bank.loadtest(profile()), "broken", 3)
    (broken.trial_folder("loadtest") / "requests.parquet").write_bytes(b"x")
    rename(bank.sweep(profile("slo={tpot_p99_ms: 1}")), "none")
    traced = dated(bank.loadtest(profile()), "traced", 4)
    edit_run(traced, verb="trace")  # holds no load, and is no damage
    (bank.root / "baselines" / "chat").mkdir(parents=True)
    (bank.root / "baselines" / "chat" / "bad.json").write_text("")
    found = followed(bank)
    assert [row.name for row in only(found)] == ["good"]
    reasons = {one.name: one.reason for one in found.skipped}
    assert sorted(reasons) == ["bad.json", "broken", "none", "torn"]
    assert "run.json is damaged" in reasons["torn"]
    assert "cannot read the samples" in reasons["broken"]
    assert "recommended nothing" in reasons["none"]
    assert "is damaged: it is empty" in reasons["bad.json"]


def test_only_the_runs_that_are_named(bank: Bank, tmp_path: Path) -> None:
    series(bank, [8, 9, 10])
    (bank.root / "torn").mkdir()
    (bank.root / "torn" / "run.json").write_text("{")
    found = followed(bank, METRIC, None, "r02", str(bank.root / "r00"))
    assert [row.name for row in only(found)] == ["r00", "r02"] and not found.skipped
    (session,) = read_sessions("r01", bank.root)
    kept = tmp_path / "kept.json"
    kept.write_text(session.model_copy(update={"name": "kept"}).model_dump_json())
    found = followed(bank, METRIC, None, str(kept))
    assert [(row.name, row.verb) for row in only(found)] == [("kept", "dstune")]
    accept("r01", bank.root, bank.root / "baselines")
    assert [row.verb for row in only(followed(bank, METRIC, None, "chat"))] == ["baseline"]
    with pytest.raises(UsageError, match="nothing is called gone"):
        followed(bank, METRIC, None, "gone")


def test_nothing_to_show(bank: Bank) -> None:
    with pytest.raises(UsageError, match=r"nothing was measured below .*: begin with"):
        followed(bank)
    rename(bank.sweep(profile("slo={tpot_p99_ms: 1}")), "none")
    with pytest.raises(UsageError, match=r"nothing was measured below .* \(none: .*recommended"):
        followed(bank)
    bank.loadtest(profile())
    with pytest.raises(UsageError, match="no run is of profile caht; there are chat"):
        followed(bank, METRIC, "caht")
    with pytest.raises(UsageError, match="a figure called tpot_p5_ms: did you mean tpot_p"):
        followed(bank, "tpot_p5_ms")
    with pytest.raises(UsageError, match="a figure called zzz: there are e2e_mean_ms"):
        followed(bank, "zzz")


def test_a_session_without_the_figure_has_a_row_without_a_value(bank: Bank) -> None:
    dated(bank.loadtest(with_seqs(8)), "old", 1)
    dated(bank.loadtest(with_seqs(8)), "new", 2)
    accept("old", bank.root, bank.root / "baselines")
    (session,) = read_sessions("new", bank.root)
    runs = tuple(one.model_copy(update={"figures": {}}) for one in session.runs)
    path = bank.root / "bare.json"
    path.write_text(session.model_copy(update={"runs": runs, "name": "bare"}).model_dump_json())
    found = followed(bank, METRIC, None, "old", str(path))
    values = {row.name: row.value.value for group in found.groups for row in group.rows}
    assert values == {"old": pytest.approx(8.0), "bare": None}


def test_a_history_survives_json(bank: Bank) -> None:
    bank.loadtest(profile())
    found = followed(bank)
    assert History.model_validate_json(json.dumps(found.model_dump(mode="json"))) == found
