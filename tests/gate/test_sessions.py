"""What a person names becomes sessions: of runs on disk, baselines, files, other tools' results."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import FakeTarget
from measured import ENVIRONMENT, Bank, edit_run, edit_trials, profile, rename
from samples import sample

from dstune.errors import DstuneError, UsageError
from dstune.gate.accept import accept
from dstune.gate.sessions import origin_of, read_sessions, run_figures, workload_of
from dstune.knobs import complete
from dstune.load.plan import LoadPlan
from dstune.measure.comparison import GateResult, QualityScores, RunFigures, Session, Thresholds
from dstune.measure.parquet import read_samples, write_samples
from dstune.measure.record import Claim, RemarkCode, TrialRecord
from dstune.measure.run_folder import RunFolder
from dstune.measure.sample import Status
from dstune.profile.load import parse_profile
from dstune.target.target import Interrupted, LoadResult, Progress


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    return Bank(tmp_path)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunFolder]:
    """A root with one finished sweep, for tests that only look."""
    root = tmp_path_factory.mktemp("swept")
    return root, Bank(root).sweep(profile())


Swept = tuple[Path, RunFolder]


def refusal(name: str, root: Path, kind: type[DstuneError] = UsageError) -> str:
    with pytest.raises(DstuneError) as caught:
        read_sessions(name, root)
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_sweep_is_the_confirmation_of_what_it_recommends(swept: Swept) -> None:
    root, folder = swept
    (session,) = read_sessions(folder.path.name, root)
    # the defaults are recommended: 32 sequences, so a step takes 4 + 0.5 * 32 = 20 ms; a prompt
    # of 20 tokens takes 2 ms, and nobody waits: 2 + 7 * 20 = 142 ms in all
    assert [one.name for one in session.runs] == ["c0-t000", "c1-t000", "c2-t000"]
    for run in session.runs:
        assert (run.num_ok, run.num_failed) == (12, 0)
        assert run.figures["ttft_p50_ms"] == pytest.approx(2.0)
        assert run.figures["tpot_p99_ms"] == pytest.approx(20.0)
        assert run.figures["e2e_p99_ms"] == pytest.approx(142.0)
    assert (session.name, session.source) == (folder.path.name, str(folder.path))
    subject = session.subject
    assert (subject.tool, subject.model, subject.model_digest) == ("dstune", "fake", "fake")
    assert (subject.precision, subject.kv_cache_dtype) == ("bf16", "auto")
    assert subject.knobs == complete({}) and subject.environment == ENVIRONMENT


def test_a_run_is_found_by_every_name_it_has(
    swept: Swept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, folder = swept
    (expected,) = read_sessions(str(folder.path), tmp_path)
    for name in ("recommended.yaml", "run.json", "trials.jsonl"):
        assert read_sessions(str(folder.path / name), tmp_path) == [expected]
    copy = tmp_path / "baseline.yaml"
    shutil.copy(folder.path / "recommended.yaml", copy)
    assert read_sessions(str(copy), root) == [expected], "a copy names its run, which is in root"
    monkeypatch.chdir(root)
    (relative,) = read_sessions(folder.path.name, Path("elsewhere"))
    assert relative.runs == expected.runs


def test_each_repetition_is_a_run_by_itself(bank: Bank) -> None:
    """Figures follow from the repetition's own samples, not from what the record says."""
    target = FakeTarget(bank.clock, noise=0.3)
    folder = bank.sweep(profile(), target)
    edit_trials(folder, lambda one: one.model_copy(update={"figures": {}}))
    (session,) = read_sessions(str(folder.path), bank.root)
    for run in session.runs:
        rows = read_samples(folder.trial_folder(run.name) / "requests.parquet")
        ttft_ms = sorted((one.first_token_ns or 0) - one.intended_ns for one in rows)
        assert run.figures["ttft_p50_ms"] == pytest.approx((ttft_ms[5] + ttft_ms[6]) / 2e6)
    assert len({one.figures["tpot_p50_ms"] for one in session.runs}) == 3


def test_when_a_run_started_is_told_by_the_wall_clock(bank: Bank) -> None:
    folder = bank.loadtest(profile())
    # 2023-11-14T22:13:20Z is 1.7e9 s of unix time
    edit_run(folder, wall_clock_zero_ns=1_700_000_000 * 10**9)
    repetition = folder.trials()[0].repetitions[0]
    (session,) = read_sessions(str(folder.path), bank.root)
    seconds = 13 * 60 + 20 + repetition.started_ns // 10**9
    assert session.runs[0].started_utc == f"2023-11-14T22:{seconds // 60}:{seconds % 60:02d}Z"
    assert session.started_utc == folder.read_run().started_utc


def test_a_load_test_is_one_run_and_its_hostile_requests_do_not_count(bank: Bank) -> None:
    folder = bank.loadtest(profile("workload.anomalies=0.5", "workload.num_requests=40"))
    (session,) = read_sessions(str(folder.path), bank.root)
    rows = read_samples(folder.trial_folder("loadtest") / "requests.parquet")
    num_normal = sum(one.kind == "normal" for one in rows)
    assert 0 < num_normal < 40 == len(rows)
    assert [(one.name, one.num_ok, one.num_failed) for one in session.runs] == [
        ("loadtest", num_normal, 0)
    ]
    assert session.subject.workload["workload"]["anomalies"] == 0.5


def test_hostile_requests_are_no_part_of_the_load_elsewhere() -> None:
    one = profile("workload.anomalies=0.5")
    assert workload_of(one, has_hostile=True)["workload"]["anomalies"] == 0.5
    assert workload_of(one, has_hostile=False)["workload"]["anomalies"] == 0.0
    assert set(workload_of(one, has_hostile=False)) == {"workload", "arrivals", "driver"}


def test_a_trace_counts_by_its_digest_wherever_it_lies(tmp_path: Path) -> None:
    loads = []
    for name in ("a", "b"):
        path = tmp_path / name / "t.jsonl"
        path.parent.mkdir()
        row = {"timestamp": 0, "input_length": 9, "output_length": 3, "hash_ids": [1]}
        path.write_text(json.dumps(row) + "\n")
        text = f"name: t\nworkload: {{}}\narrivals: {{kind: trace, path: {path}}}\n"
        loads.append(workload_of(parse_profile("t.yaml", text), has_hostile=False))
    assert loads[0] == loads[1] and loads[0]["arrivals"]["digest"]


def test_what_did_not_end_ok_has_failed_also_when_it_was_never_sent() -> None:
    samples = [
        sample(tokens_ms=[10, 20]),
        sample(status=Status.REJECTED),
        sample(status=Status.FAILED),
        sample(status=Status.TIMEOUT),
        sample(status=Status.INCOMPLETE),
        sample(status=Status.UNSENT),
        sample(status=Status.REJECTED, kind="too_long"),  # hostile: not counted
    ]
    run = run_figures("r", [samples], profile())
    assert (run.num_ok, run.num_failed) == (1, 5)
    assert run.figures["ttft_p50_ms"] == 10 and run.figures["tpot_p99_ms"] == 10


def test_a_figure_without_a_value_is_left_out() -> None:
    run = run_figures("r", [[sample(tokens_ms=[10])]], profile())
    assert run.figures["ttft_p99_ms"] == 10
    assert "tpot_p99_ms" not in run.figures, "one token has no time per further token"


def test_a_gate_is_its_candidate_and_a_pair_measured_again_replaces_the_first(bank: Bank) -> None:
    trials = [("p01-baseline", 0), ("p01-candidate", 0), ("p01r-candidate", 0),
              ("p01r-baseline", 0), ("p02-candidate", 1), ("p02-baseline", 1)]  # fmt: skip
    folder = bank.gate(profile(), trials)
    (session,) = read_sessions(str(folder.path), bank.root)
    assert [one.name for one in session.runs] == ["p01r-candidate", "p02-candidate"]
    assert session.subject.workload["workload"]["anomalies"] == 0.0


def test_several_loads_of_a_pair_are_one_run(bank: Bank) -> None:
    folder = bank.gate(profile(), [("p01-candidate-1", 0), ("p01-candidate-2", 1)])
    (session,) = read_sessions(str(folder.path), bank.root)
    assert [(one.name, one.num_ok) for one in session.runs] == [("p01-candidate", 24)]


def test_repetitions_of_one_trial_are_told_apart_in_its_file(bank: Bank) -> None:
    folder = bank.gate(profile(), [("p01-candidate", (3, 4))])
    (session,) = read_sessions(str(folder.path), bank.root)
    assert [(one.name, one.num_ok) for one in session.runs] == [("p01-candidate", 24)]


def verdict_of(folder: RunFolder, names: list[str]) -> None:
    """A gate.json that judged these runs of the candidate."""
    (session,) = read_sessions(str(folder.path), folder.path.parent)
    quality = QualityScores(precision="bf16", kv_cache_dtype="bf16", text_digest="d",
                            num_tokens=2, window_nlls=(1.5,))  # fmt: skip
    runs = tuple(RunFigures(name=one, started_utc="", num_ok=1, num_failed=0, figures={})
                 for one in names)  # fmt: skip
    side = session.model_copy(update={"runs": runs, "quality": quality})
    result = GateResult(method="paired", is_advisory=False, claim=Claim.PASS, exit_code=0,
                        message="pass", baseline=side, candidate=side, thresholds=Thresholds(),
                        metrics=())  # fmt: skip
    folder.write_json("gate.json", result.model_dump(mode="json"))


def test_a_gate_with_a_verdict_has_the_runs_that_it_judged_and_their_quality(bank: Bank) -> None:
    folder = bank.gate(profile(), [("p01-candidate", 0), ("p02-candidate", 1)])
    verdict_of(folder, ["p01-candidate"])  # the second could not be trusted
    (session,) = read_sessions(str(folder.path), bank.root)
    assert [one.name for one in session.runs] == ["p01-candidate"]
    assert session.quality is not None and session.quality.window_nlls == (1.5,)
    (folder.path / "gate.json").write_text('{"schema_version": 1}')
    assert "gate.json is damaged: method" in refusal(str(folder.path), bank.root, DstuneError)


def test_remarks_come_along(bank: Bank) -> None:
    folder = bank.loadtest(profile())
    (session,) = read_sessions(str(folder.path), bank.root)
    assert [one.code for one in session.runs[0].remarks] == [RemarkCode.TOO_FEW_SAMPLES]


def test_without_raw_samples_what_is_stored_is_used(bank: Bank) -> None:
    folder = bank.sweep(profile())
    (before,) = read_sessions(str(folder.path), bank.root)
    shutil.rmtree(folder.path / "trials")
    (after,) = read_sessions(str(folder.path), bank.root)
    for old, new in zip(before.runs, after.runs, strict=True):
        assert (new.name, new.num_ok, new.num_failed) == (old.name, 12, 0)
        assert new.figures["ttft_p99_ms"] == old.figures["ttft_p99_ms"]


def test_without_raw_samples_of_several_loads_there_is_no_figure(bank: Bank) -> None:
    folder = bank.gate(profile(), [("p01-candidate-1", 0), ("p01-candidate-2", 1)])
    (folder.trial_folder("p01-candidate-2") / "requests.parquet").unlink()
    said = refusal(str(folder.path), bank.root, DstuneError)
    assert "requests.parquet is missing: restore it, or measure again" in said


def test_samples_that_are_not_whole_are_an_error(bank: Bank) -> None:
    folder = bank.loadtest(profile())
    path = folder.trial_folder("loadtest") / "requests.parquet"
    write_samples(path, read_samples(path)[:-1])
    said = refusal(str(folder.path), bank.root, DstuneError)
    assert "holds 11 of 12 requests: restore it" in said
    path.write_bytes(b"not parquet")
    assert "cannot read the samples" in refusal(str(folder.path), bank.root, DstuneError)


def test_a_confirmation_trial_that_is_gone_is_an_error(bank: Bank) -> None:
    folder = bank.sweep(profile())
    text = (folder.path / "trials.jsonl").read_text().splitlines(keepends=True)
    (folder.path / "trials.jsonl").write_text(
        "".join(one for one in text if '"c1-t000"' not in one)
    )
    said = refusal(str(folder.path), bank.root, DstuneError)
    assert "trials.jsonl lacks c1-t000, which recommended.yaml rests on" in said


def test_nothing_of_that_name(swept: Swept, tmp_path: Path) -> None:
    root, folder = swept
    said = refusal("nonsense", root)
    assert said.startswith(
        f"nothing is called nonsense: neither a file or folder, nor a run in {root}"
    )
    assert said.endswith(f"the latest run there is {folder.path.name}")
    assert "latest" not in refusal("nonsense", tmp_path)
    assert "an empty name names no result" in refusal(" ", root)


def test_folders_that_are_no_result(swept: Swept, tmp_path: Path) -> None:
    root, folder = swept
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.json").write_text("")
    assert "empty is empty: there is nothing to compare" in refusal("empty", tmp_path)
    assert "empty.json is empty: there is nothing" in refusal("empty.json", tmp_path)
    said = refusal(str(root), tmp_path)
    assert said.endswith(f"holds 1 runs: name one of them, such as {folder.path.name}")
    shutil.copytree(folder.path, tmp_path / "part")
    (tmp_path / "part" / "run.json").unlink()
    (tmp_path / "part" / "recommended.yaml").unlink()
    assert "its run.json is missing: restore it" in refusal("part", tmp_path)


def test_a_lone_recommendation_says_what_is_missing(swept: Swept, tmp_path: Path) -> None:
    _, folder = swept
    (tmp_path / "copied").mkdir()
    shutil.copy(folder.path / "recommended.yaml", tmp_path / "copied")
    for name in ("copied", str(tmp_path / "copied" / "recommended.yaml")):
        said = refusal(name, tmp_path)
        assert "is a copy without its run: run.json (profile, environment) and trials/" in said
        assert f"name the run folder {folder.path.name}" in said
        with pytest.raises(UsageError, match="copy without its run"):
            origin_of(name, tmp_path)


def test_yaml_that_recommends_nothing(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("name: chat\nworkload: {prompt_tokens: 1, output_tokens: 1}\n")
    said = refusal(str(path), tmp_path)
    assert said == f"{path} is a profile, not a result: first run dstune sweep {path}"
    path.write_text("a: [")
    assert "cannot be read as a recommended.yaml" in refusal(str(path), tmp_path)
    path.write_text("schema_version: 1\n")
    said = refusal(str(path), tmp_path)
    assert "is no recommended.yaml of this version: profile: Field required" in said


def test_a_sweep_that_recommended_nothing(bank: Bank) -> None:
    folder = bank.sweep(profile("slo={tpot_p99_ms: 1}"))
    assert folder.recommendation() is None
    said = refusal(str(folder.path), bank.root)
    assert "recommended nothing (none of 3 configurations meets the SLO" in said
    assert said.endswith("name a run that did")


@pytest.mark.parametrize("status", ["interrupted", "running"])
def test_a_sweep_that_was_interrupted_or_killed(bank: Bank, status: str) -> None:
    target = FakeTarget(bank.clock, interrupts_at_run=1)
    folder = bank.sweep(profile(), target)
    edit_run(folder, status=status)
    said = refusal(str(folder.path), bank.root)
    assert said == (
        f"{folder.path} was interrupted before it recommended anything: "
        f"go on with dstune sweep --resume {folder.path}"
    )
    with folder.locked():
        assert "is still being written: wait for it" in refusal(str(folder.path), bank.root)


def test_a_load_test_that_measured_nothing(bank: Bank) -> None:
    folder = bank.loadtest(profile(), FakeTarget(bank.clock, interrupts_at_run=0))
    said = refusal(str(folder.path), bank.root)
    assert said.endswith(
        "was interrupted before anything was measured: run it again with dstune loadtest p.yaml"
    )
    failed = {"exit_code": 5, "message": "it died"}
    edit_run(folder, status="failed", verdict=failed)
    assert "failed before anything was measured (it died): run it" in refusal(
        str(folder.path), bank.root
    )
    edit_run(folder, verb="gate", status="finished", verdict=failed)
    assert "measured nothing itself (it died)" in refusal(str(folder.path), bank.root)
    edit_run(folder, verb="trace")
    assert "is a trace: it holds no load to compare" in refusal(str(folder.path), bank.root)


def test_a_load_test_that_was_cut_short_has_failed_requests(bank: Bank) -> None:
    @dataclasses.dataclass
    class Cut(FakeTarget):
        def run(self, plan: LoadPlan, progress: Progress | None = None) -> LoadResult:
            result = super().run(plan, progress)
            if self.num_runs < 2:
                return result  # the warm-up
            kept = [*result.samples[:9], *(
                dataclasses.replace(one, status=Status.INCOMPLETE) for one in result.samples[9:]
            )]  # fmt: skip
            raise Interrupted(dataclasses.replace(result, samples=tuple(kept)))

    folder = bank.loadtest(profile(), Cut(bank.clock))
    (session,) = read_sessions(str(folder.path), bank.root)
    assert (session.runs[0].num_ok, session.runs[0].num_failed) == (9, 3)


def test_another_schema_version_or_a_damaged_run(bank: Bank) -> None:
    folder = bank.loadtest(profile())
    edit_run(folder, schema_version=2, novelty=True)
    said = refusal(str(folder.path), bank.root)
    assert "run.json is of schema version 2, this dstune reads 1: use the dstune that wrote" in said
    (folder.path / "run.json").write_text("{")
    assert "run.json is damaged" in refusal(str(folder.path), bank.root, DstuneError)


def test_baselines_of_a_profile_come_together_oldest_first(bank: Bank) -> None:
    runs = []
    for name, moment in (("b", "2026-01-02"), ("a", "2026-01-03"), ("c", "2026-01-01")):
        folder = rename(bank.sweep(profile()), name)
        edit_run(folder, started_utc=f"{moment}T00:00:00Z")
        accept(str(folder.path), bank.root, bank.root / "baselines")
        runs.append(folder)
    home = bank.root / "baselines" / "chat"
    for name in ("chat", str(home)):
        found = read_sessions(name, bank.root)
        assert [one.name for one in found] == ["c", "b", "a"]
        assert [one.source for one in found] == [str(home / f"{one}.json") for one in "cba"]
    shutil.rmtree(runs[0].path)
    (live,) = read_sessions(str(runs[1].path), bank.root)
    for name in ("b", "chat/b", "chat/b.json", str(home / "b.json")):
        (found_one,) = read_sessions(name, bank.root)
        assert found_one.name == "b"
        assert [one.figures for one in found_one.runs] == [one.figures for one in live.runs]
    said = refusal(str(home.parent), bank.root)
    assert said.endswith("holds baselines of several profiles: name one, such as chat")


def test_a_path_goes_before_a_baseline_s_name(
    bank: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept(str(bank.sweep(profile()).path), bank.root, bank.root / "baselines")
    here = tmp_path / "here"
    (here / "chat").mkdir(parents=True)
    assert len(read_sessions("chat", bank.root)) == 1
    monkeypatch.chdir(here)
    assert refusal("chat", bank.root) == "chat is empty: there is nothing to compare"


def test_a_session_s_own_json(bank: Bank, tmp_path: Path) -> None:
    (session,) = read_sessions(str(bank.sweep(profile()).path), bank.root)
    path = tmp_path / "kept.json"
    path.write_text(session.model_dump_json())
    assert read_sessions(str(path), bank.root) == [session]
    with pytest.raises(UsageError, match="without what a re-run needs: compare with --stored"):
        origin_of(str(path), bank.root)
    path.write_text(json.dumps({**json.loads(path.read_text()), "runs": 3}))
    assert "kept.json is damaged: runs: Input should be a valid tuple" in refusal(
        str(path), bank.root
    )


def test_results_of_another_tool_are_imported(tmp_path: Path) -> None:
    result = {
        "date": "20260101-120000", "backend": "openai-chat", "model_id": "m", "num_prompts": 2,
        "request_rate": "inf", "duration": 2.0, "completed": 2, "failed": 0,
        "total_input_tokens": 20, "total_output_tokens": 8, "request_throughput": 1.0,
        "output_throughput": 4.0, "total_token_throughput": 14.0,
        "mean_ttft_ms": 15.0, "median_ttft_ms": 15.0,
        "p99_ttft_ms": 19.9, "mean_tpot_ms": 5.0, "median_tpot_ms": 5.0, "p99_tpot_ms": 6.0,
    }  # fmt: skip
    folder = tmp_path / "vllm"
    folder.mkdir()
    (folder / "run.json.txt").write_text("other")
    (folder / "one.json").write_text(json.dumps(result))
    (session,) = read_sessions(str(folder), tmp_path)
    assert session.subject.tool != "dstune" and session.subject.model == "m"
    assert session.runs[0].num_ok == 2
    with pytest.raises(UsageError, match="results without what a re-run needs"):
        origin_of("vllm", tmp_path)


def test_what_a_rerun_needs(bank: Bank) -> None:
    def knobs_of(trial: TrialRecord) -> int:
        return int(str(trial.knobs["max_num_seqs"]))

    swept = bank.sweep(profile("slo={tpot_p99_ms: 9}"))  # 4 + 0.5 * 8 = 8 ms is met by 8 alone
    origin = origin_of(str(swept.path / "recommended.yaml"), bank.root)
    assert origin.knobs["max_num_seqs"] in (2, 8)
    assert origin.knobs == swept.recommendation().knobs  # type: ignore[union-attr]
    assert origin.profile == profile("slo={tpot_p99_ms: 9}")
    assert (origin.run, origin.source) == (swept.path.name, str(swept.path))
    assert origin.environment == ENVIRONMENT
    assert origin.git_revision == "1111111111111111"
    tested = bank.loadtest(profile("knobs.max_num_seqs=3", "search={}"))
    assert origin_of(tested.path.name, bank.root).knobs["max_num_seqs"] == 3
    accept(str(swept.path), bank.root, bank.root / "baselines")
    shutil.rmtree(swept.path)
    kept = origin_of("chat", bank.root)
    assert kept.knobs == origin.knobs and kept.profile == origin.profile
    assert kept.source.endswith(f"baselines/chat/{swept.path.name}.json")
    assert knobs_of(tested.trials()[0]) == 3


def test_of_several_baselines_the_newest_is_run_again(bank: Bank) -> None:
    for name, moment in (("b", "2026-01-02"), ("a", "2026-01-03")):
        folder = rename(bank.sweep(profile()), name)
        edit_run(folder, started_utc=f"{moment}T00:00:00Z")
        accept(name, bank.root, bank.root / "baselines")
    assert origin_of("chat", bank.root).run == "a"


Edit = Callable[[dict[str, object]], object]


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda data: data["session"]["runs"][0]["figures"].update(ttft_p50_ms=1.0),  # type: ignore[index]
         "it was changed after it was accepted (its digest does not hold)"),
        (lambda data: data.pop("profile"), "profile: Field required"),
        (lambda data: data["session"].pop("name"), "session.name: Field required"),  # type: ignore[attr-defined]
        (lambda data: data.update(samples_digest="0"), "it was changed after it was accepted"),
    ],
)  # fmt: skip
def test_a_changed_baseline_is_refused(bank: Bank, edit: Edit, said: str) -> None:
    path = accept(str(bank.sweep(profile()).path), bank.root, bank.root / "baselines")
    data = json.loads(path.read_text())
    edit(data)
    path.write_text(json.dumps(data))
    found = refusal("chat", bank.root)
    assert f"{path} is damaged: {said}" in found
    assert found.endswith("or remove it and accept the run again")


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "it is empty"), (b"{", "it is no JSON ("), (b"\xff\xfe", "it is no JSON ("),
     (b"[]", "it is no JSON object"), (b"null", "it is no JSON object")],
)  # fmt: skip
def test_a_broken_baseline_is_refused(bank: Bank, content: bytes, said: str) -> None:
    path = accept(str(bank.sweep(profile()).path), bank.root, bank.root / "baselines")
    path.write_bytes(content)
    for name in ("chat", str(path), str(path.parent)):
        assert f"{path} is damaged: {said}" in refusal(name, bank.root)


def test_a_cut_off_baseline_is_refused_also_outside_its_folder(bank: Bank, tmp_path: Path) -> None:
    path = accept(str(bank.sweep(profile()).path), bank.root, bank.root / "baselines")
    moved = tmp_path / "moved.json"
    moved.write_bytes(path.read_bytes()[:-200])
    assert f"{moved} is damaged: it is no JSON" in refusal(str(moved), bank.root)


def test_a_baseline_of_another_version_is_refused(bank: Bank) -> None:
    path = accept(str(bank.sweep(profile()).path), bank.root, bank.root / "baselines")
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 9}))
    assert f"{path} is of schema version 9, this dstune reads 1" in refusal("chat", bank.root)


def test_a_baseline_s_samples_are_those_that_were_accepted(bank: Bank) -> None:
    path = accept(str(bank.sweep(profile()).path), bank.root, bank.root / "baselines")
    beside = path.with_suffix(".parquet")
    write_samples(beside, read_samples(beside)[:-1])
    assert "are not those that were accepted" in refusal("chat", bank.root)
    beside.unlink()
    assert f"its raw samples {beside.name} are missing" in refusal("chat", bank.root)


def test_exact_figures_are_compared_in_another_way(bank: Bank) -> None:
    path = bank.root / "baselines" / "engine.exact.json"
    path.parent.mkdir()
    path.write_text("{}")
    assert "holds exact figures" in refusal(str(path), bank.root)


def test_sessions_survive_json(swept: Swept) -> None:
    (session,) = read_sessions(str(swept[1].path), swept[0])
    assert Session.model_validate_json(session.model_dump_json()) == session
