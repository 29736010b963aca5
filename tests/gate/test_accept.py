"""A run becomes a committed baseline, or is refused with the reason."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import pytest
from fakes import FakeTarget
from measured import ENVIRONMENT, Bank, edit_run, edit_trials, profile, rename

from dstune.errors import ExitCode, NotComparable, UsageError
from dstune.gate import accept as accepting
from dstune.gate.accept import accept
from dstune.gate.baselines import read_baseline
from dstune.gate.sessions import read_sessions
from dstune.load.plan import LoadPlan
from dstune.measure.parquet import read_samples
from dstune.measure.record import Remark, RemarkCode, TrialRecord
from dstune.measure.run_folder import RunFolder
from dstune.measure.sample import SampleError, Status
from dstune.profile.load import dump_profile
from dstune.target.target import LoadResult, Progress


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    return Bank(tmp_path / "reports")


def home(bank: Bank) -> Path:
    return bank.root / "baselines"


def files(bank: Bank) -> list[str]:
    found = home(bank)
    return sorted(one.relative_to(found).as_posix() for one in found.rglob("*") if one.is_file())


def take(bank: Bank, folder: RunFolder) -> Path:
    return accept(folder.path.name, bank.root, home(bank))


def test_a_baseline_is_the_session_with_digests_and_the_samples_beside_it(bank: Bank) -> None:
    folder = rename(bank.sweep(profile()), "first")
    path = take(bank, folder)
    assert path == home(bank) / "chat" / "first.json"
    assert files(bank) == ["chat/first.json", "chat/first.parquet"]
    baseline = read_baseline(path)
    assert baseline.profile == dump_profile(profile())
    (live,) = read_sessions("first", bank.root)
    assert baseline.session == live.model_copy(update={"source": "first"})
    assert str(bank.root) not in path.read_text(), "no path of this machine is committed"
    raw = [f"trials/c{at}-t000/requests.parquet" for at in range(3)]
    assert list(baseline.raw) == raw
    for name in raw:
        digest = hashlib.sha256((folder.path / name).read_bytes()).hexdigest()
        assert baseline.raw[name] == digest
    samples = read_samples(path.with_name(baseline.samples))
    assert samples == [one for at in range(3) for one in folder.samples(f"c{at}-t000")]
    assert baseline.note == "" and path.stat().st_size < 50_000


def test_large_samples_stay_where_they_are(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    assert accepting.LARGEST_BYTES == 1 << 20
    folder = bank.sweep(profile("workload.num_requests=200"))
    size = sum(
        (folder.trial_folder(f"c{at}-t000") / "requests.parquet").stat().st_size for at in range(3)
    )
    monkeypatch.setattr(accepting, "LARGEST_BYTES", 10_000)
    assert size > 20_000
    path = take(bank, folder)
    baseline = read_baseline(path)
    assert files(bank) == [f"chat/{path.name}"]
    assert baseline.samples == "" and len(baseline.raw) == 3
    assert "they stay in the run folder" in baseline.note


def test_samples_that_were_thrown_away_are_told(bank: Bank) -> None:
    folder = bank.sweep(profile())
    shutil.rmtree(folder.path / "trials")
    path = take(bank, folder)
    baseline = read_baseline(path)
    assert baseline.raw == {} and baseline.samples == ""
    assert baseline.note.startswith("the raw samples were not kept")


def test_a_load_test_and_a_gate_are_accepted_too(bank: Bank) -> None:
    tested = rename(bank.loadtest(profile()), "tested")
    compared = rename(bank.gate(profile(), [("p01-candidate", 0)]), "compared")
    assert take(bank, tested).is_file()
    assert take(bank, compared).is_file()
    assert {one.name for one in read_sessions("chat", bank.root)} == {"tested", "compared"}


def test_accepting_twice_changes_nothing(bank: Bank) -> None:
    folder = bank.sweep(profile())
    path = take(bank, folder)
    before = path.read_bytes()
    assert accept(str(folder.path / "recommended.yaml"), bank.root, home(bank)) == path
    assert path.read_bytes() == before


def test_another_result_of_the_same_name_is_not_overwritten(bank: Bank) -> None:
    path = take(bank, rename(bank.sweep(profile()), "same"))
    before = path.read_bytes()
    shutil.rmtree(bank.root / "same")
    rename(bank.sweep(profile(), FakeTarget(bank.clock, noise=0.1)), "same")
    with pytest.raises(UsageError) as caught:
        accept("same", bank.root, home(bank))
    assert f"{path} holds another result of the same name: remove it first" in str(caught.value)
    assert path.read_bytes() == before


def test_a_damaged_baseline_of_the_same_name_is_told(bank: Bank) -> None:
    folder = bank.sweep(profile())
    take(bank, folder).write_text("{")
    with pytest.raises(UsageError, match="is damaged: it is no JSON"):
        take(bank, folder)


def test_only_runs_of_dstune(bank: Bank, tmp_path: Path) -> None:
    path = take(bank, bank.sweep(profile()))
    other = tmp_path / "other.json"
    other.write_text('{"duration": 1}')
    for name in ("chat", str(path), str(other)):
        with pytest.raises(UsageError, match="it is no run folder of dstune, and holds no"):
            accept(name, bank.root, home(bank))


@dataclasses.dataclass
class Losing(FakeTarget):
    """Loses the last `num_lost` requests of every run but the warm-up."""

    num_lost: int = 0

    def run(self, plan: LoadPlan, progress: Progress | None = None) -> LoadResult:
        result = super().run(plan, progress)
        at = len(result.samples) - (self.num_lost if self.num_runs > 1 else 0)
        lost = [dataclasses.replace(one, status=Status.FAILED, error=SampleError.RESET)
                for one in result.samples[at:]]  # fmt: skip
        return dataclasses.replace(result, samples=(*result.samples[:at], *lost))


@pytest.mark.parametrize(
    ("num_lost", "said"),
    [(1, "1 of 12 requests of RUN failed (in loadtest)"), (12, "all 12 requests of RUN failed")],
)
def test_failed_requests_are_refused(bank: Bank, num_lost: int, said: str) -> None:
    folder = bank.loadtest(profile(), Losing(bank.clock, num_lost=num_lost))
    with pytest.raises(NotComparable) as caught:
        take(bank, folder)
    assert said.replace("RUN", folder.path.name) in str(caught.value)
    assert not home(bank).exists()


def test_figures_that_cannot_be_trusted_are_refused(bank: Bank) -> None:
    def doubted(trial: TrialRecord) -> TrialRecord:
        remark = Remark(code=RemarkCode.HOST_CONTENDED, message="others took 40% of the CPU")
        repetitions = [one.model_copy(update={"remarks": (remark,)}) for one in trial.repetitions]
        return trial.model_copy(update={"repetitions": tuple(repetitions)})

    folder = bank.sweep(profile())
    edit_trials(folder, doubted)
    with pytest.raises(NotComparable) as caught:
        take(bank, folder)
    assert "cannot be trusted (host_contended: others took 40% of the CPU)" in str(caught.value)


def test_a_run_that_did_not_end_is_refused(bank: Bank) -> None:
    folder = bank.loadtest(profile())
    with folder.locked(), pytest.raises(UsageError, match="still being written: wait for it"):
        take(bank, folder)
    for status in ("interrupted", "failed"):
        edit_run(folder, status=status)
        with pytest.raises(UsageError, match=f"is {status}: a part of a run is no baseline"):
            take(bank, folder)
    edit_run(folder, status="finished")
    assert take(bank, folder).is_file()


def test_nothing_to_accept(bank: Bank) -> None:
    with pytest.raises(UsageError, match="nothing is called gone"):
        accept("gone", bank.root, home(bank))
    folder = bank.sweep(profile("slo={tpot_p99_ms: 1}"))
    with pytest.raises(UsageError, match="recommended nothing"):
        take(bank, folder)


def test_what_is_of_something_else_does_not_stand_beside_it(bank: Bank) -> None:
    path = take(bank, rename(bank.loadtest(profile()), "first"))
    gpus = ["NVIDIA H200, 143771 MiB, 570.86"]
    others = {
        "machine": bank.loadtest(profile(), gpus=gpus),
        "load": bank.loadtest(profile("workload.num_requests=13")),
        "knobs": bank.loadtest(profile("knobs.max_num_seqs=4", "search={}")),
        "precision": bank.loadtest(profile("knobs.precision=int8")),
    }
    said = {
        "machine": "GPU none / NVIDIA H200",
        "load": "workload.num_requests 12 / 13",
        "knobs": "max_num_seqs 32 / 4",
        "precision": "precision bf16 / int8",
    }
    for name, folder in others.items():
        with pytest.raises(NotComparable) as caught:
            take(bank, folder)
        assert caught.value.exit_code is ExitCode.NOT_COMPARABLE
        assert str(caught.value) == (
            f"{folder.path.name} does not belong beside {path} (that one / this one): "
            f"{said[name]}; remove {path} to start anew"
        )
    assert files(bank) == ["chat/first.json", "chat/first.parquet"]


def test_a_later_version_of_dstune_stands_beside_an_earlier_one(bank: Bank) -> None:
    versions = {**ENVIRONMENT["versions"], "dstune": "0.2.0"}
    take(bank, bank.loadtest(profile()))
    take(bank, bank.loadtest(profile(), versions=versions, git_revision="2" * 16))
    assert len(read_sessions("chat", bank.root)) == 2


def test_profiles_do_not_disturb_each_other(bank: Bank) -> None:
    take(bank, bank.loadtest(profile()))
    path = take(bank, bank.loadtest(profile("name=other", "workload.num_requests=13")))
    assert path.parent == home(bank) / "other"


def test_a_place_that_cannot_be_written(bank: Bank) -> None:
    folder = bank.loadtest(profile())
    home(bank).write_text("a file")
    with pytest.raises(UsageError, match=r"cannot write below .*baselines"):
        take(bank, folder)


def test_a_baseline_reads_as_lines(bank: Bank) -> None:
    """So that a diff of two commits shows what changed."""
    path = take(bank, bank.sweep(profile()))
    text = path.read_text()
    assert len(text.split("\n")) > 100
    assert json.loads(text)["digest"] == read_baseline(path).expected_digest()
