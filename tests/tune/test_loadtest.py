"""Load tests against the fake target with its fake clock: verdicts, accounting, ends."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import TEXT, FakeClock, FakeTarget, Recorder

from dstune.errors import DstuneError, KnobError, ModelError, ProfileError, TargetError, UsageError
from dstune.knobs import complete
from dstune.load.plan import LoadPlan
from dstune.measure.anomalies import HANDLED_TARGET
from dstune.measure.record import AnomalyKind, TrialRecord
from dstune.measure.run_folder import RunFolder
from dstune.measure.sample import Sample, SampleError, Status
from dstune.profile.load import dump_profile, parse_profile, restore_profile
from dstune.profile.model import LOADTEST_DURATION_S, ArrivalKind, Profile
from dstune.target.target import Interrupted, LoadResult, Progress
from dstune.tune import sweep as sweeping
from dstune.tune.bench import Setting
from dstune.tune.loadtest import (
    Outcome,
    begin,
    configuration,
    judge,
    loadtest,
    under_load,
    with_fresh_prompts,
)

PROFILE = """
name: chat
scenario: low_latency
workload:
  prompt_tokens: {distribution: lognormal, median: 40, sigma: 0.5, max: 200}
  output_tokens: 16
  anomalies: 0.05
arrivals: {kind: poisson, rate_per_s: 10, duration: 60s}
slo: {ttft_p99_ms: 400, tpot_p99_ms: 12}
knobs: {max_num_seqs: 8}
"""
URL = "http://127.0.0.1:1"


def profile(*overrides: str) -> Profile:
    return parse_profile("p.yaml", PROFILE, overrides)


def loaded(one: Profile, **asked: Any) -> Profile:
    return under_load(one, **{"duration": None, "rate_per_s": None, "users": None, **asked})


@dataclasses.dataclass
class Stand:
    """Everything that a load test needs around its target."""

    root: Path
    clock: FakeClock = dataclasses.field(default_factory=FakeClock)
    watched: Recorder = dataclasses.field(default_factory=Recorder)

    def setting(self, target: FakeTarget) -> Setting:
        return Setting(lambda _: target, self.watched, lambda: TEXT, self.clock.now_ns,
                       self.clock.read_cpu)  # fmt: skip

    def folder(self, one: Profile, notes: tuple[str, ...] = ()) -> RunFolder:
        return begin(one, complete(one.knobs), self.root, ["loadtest", "p.yaml"], {}, notes)

    def loadtest(self, one: Profile, target: FakeTarget | None = None) -> Outcome:
        return loadtest(self.folder(one), self.setting(target or FakeTarget(self.clock)))


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path)


@dataclasses.dataclass
class Turned(FakeTarget):
    """A fake whose samples of the load are turned into others."""

    turn: Callable[[Sample], Sample] = lambda one: one

    def run(self, plan: LoadPlan, progress: Progress | None = None) -> LoadResult:
        result = super().run(plan, progress)
        if self.num_runs == 1:
            return result  # the warm-up
        samples = tuple(map(self.turn, result.samples))
        return dataclasses.replace(result, samples=samples)


def measured(outcome: Outcome) -> TrialRecord:
    assert outcome.trial is not None and outcome.trial.is_measured
    return outcome.trial


def message(outcome: Outcome) -> str:
    assert outcome.run.verdict is not None
    return outcome.run.verdict.message


def test_a_kept_promise_is_a_pass_and_everything_is_on_disk(stand: Stand) -> None:
    target = FakeTarget(stand.clock)
    outcome = stand.loadtest(profile(), target)
    assert (outcome.exit_code, outcome.run.status) == (0, "finished")
    assert message(outcome).startswith("pass: every promise is kept")
    trial = measured(outcome)
    folder = RunFolder(outcome.folder)
    assert folder.read_run() == outcome.run
    assert folder.trials() == [trial]
    samples = folder.samples("loadtest")
    warmup, plan = target.plans
    assert [one.request_id for one in samples] == [one.request_id for one in plan.requests]
    assert not any(one.request_id.startswith("warmup") for one in samples)
    assert all(one.kind == "normal" for one in warmup.requests)
    assert {one.trial_id for one in samples} == {"loadtest"}
    assert trial.load and trial.phase == "loadtest" and trial.driver == "http"
    assert target.configured == [complete(profile().knobs)]
    assert (target.num_resets, target.num_stops) == (1, 1)
    # observers hear of a beginning, of progress, and of an end
    assert len(stand.watched.begun) == len(stand.watched.started) == 1
    assert stand.watched.advanced[-1][2:] == (len(samples), len(samples))
    assert stand.watched.finished == [trial]


def test_every_planned_request_is_accounted_for_and_hostile_ones_apart(stand: Stand) -> None:
    trial = measured(stand.loadtest(profile()))
    samples = RunFolder(next(stand.root.iterdir())).samples("loadtest")
    kinds = Counter(one.kind for one in samples if one.kind != "normal")
    accounting = trial.accounting
    assert accounting is not None
    assert accounting.num_planned == len(samples) == sum(accounting.by_status.values())
    assert accounting.num_hostile == sum(kinds.values()) == round(0.05 * len(samples))
    assert {one.kind: one.num for one in trial.anomalies} == kinds
    assert all(one.num_as_expected == one.num for one in trial.anomalies)
    # a promise is about the normal ones
    assert {one.num_samples for one in trial.slo} == {len(samples) - accounting.num_hostile}


def test_a_missed_promise_is_a_fail(stand: Stand) -> None:
    outcome = stand.loadtest(profile("slo.tpot_p99_ms=1"))
    assert (outcome.exit_code, outcome.run.status) == (1, "finished")
    assert message(outcome) == "fail: tpot_p99_ms missed"


def test_too_few_requests_are_inconclusive(stand: Stand) -> None:
    outcome = stand.loadtest(profile("arrivals.duration=10s"))
    assert (outcome.exit_code, outcome.run.status) == (3, "finished")
    assert message(outcome).startswith("inconclusive: ttft_p99_ms: 0 of ")
    assert "needed to claim it" in message(outcome) and "longer load" in message(outcome)


def test_what_cannot_be_trusted_is_inconclusive_even_where_it_fails(stand: Stand) -> None:
    cached = Turned(stand.clock, turn=lambda one: dataclasses.replace(
        one, cached_tokens=one.prompt_tokens))  # fmt: skip
    outcome = stand.loadtest(profile("slo.tpot_p99_ms=1"), cached)
    assert outcome.exit_code == 3
    assert "cannot be trusted (prefix_contamination: " in message(outcome)
    assert not measured(outcome).is_trusted


def test_a_hostile_request_that_ends_otherwise_is_a_fail(stand: Stand) -> None:
    def turn(one: Sample) -> Sample:
        if one.kind != "malformed_json":
            return one
        return dataclasses.replace(one, status=Status.FAILED, error=SampleError.SERVER_ERROR,
                                   http_status=500)  # fmt: skip

    outcome = stand.loadtest(profile(), Turned(stand.clock, turn=turn))
    trial = measured(outcome)
    (kind,) = [one for one in trial.anomalies if one.kind == "malformed_json"]
    num = sum(one.num for one in trial.anomalies)
    assert kind.num > 0 and kind.num_as_expected == 0 and kind.outcomes == {"500": kind.num}
    assert outcome.exit_code == 1
    said = f"fail: {kind.num} of {num} hostile requests did not end as they should"
    said += "; 99.9% have to be handled"
    assert message(outcome) == said


@pytest.mark.parametrize(("num", "num_bad", "code"), [(1000, 1, 0), (999, 1, 1), (1000, 2, 1)])
def test_one_hostile_request_of_a_thousand_may_end_otherwise(
    stand: Stand, num: int, num_bad: int, code: int
) -> None:
    trial = measured(stand.loadtest(profile()))
    kinds = tuple(
        AnomalyKind(kind=kind, num=of, num_as_expected=good, num_beside=0, is_slo_met_beside=True,
                    outcomes={})
        for kind, of, good in (("disconnect", 500, 500),
                               ("wrong_types", num - 500, num - 500 - num_bad))
    )  # fmt: skip
    assert judge(trial.model_copy(update={"anomalies": kinds})).exit_code == code
    assert HANDLED_TARGET == 0.999


def test_lost_requests_count_against_the_promise(stand: Stand) -> None:
    def turn(one: Sample) -> Sample:
        if one.kind != "normal" or int(one.request_id[-1]) % 5:
            return one
        return dataclasses.replace(one, status=Status.FAILED, error=SampleError.RESET)

    outcome = stand.loadtest(profile(), Turned(stand.clock, turn=turn))
    trial = measured(outcome)
    assert outcome.exit_code == 1 and "success_rate" in message(outcome)
    assert trial.accounting is not None
    assert trial.accounting.by_error == {"reset": trial.accounting.by_status["failed"]}


@dataclasses.dataclass
class Struck(FakeTarget):
    """A fake that is interrupted in the middle of the load."""

    def run(self, plan: LoadPlan, progress: Progress | None = None) -> LoadResult:
        result = super().run(plan, progress)
        if self.num_runs == 1:
            return result
        half = len(result.samples) // 2
        rest = (dataclasses.replace(one, status=Status.UNSENT, error=SampleError.STOPPED,
                                    sent_ns=None, first_token_ns=None, last_token_ns=None,
                                    done_ns=None, output_tokens=0)
                for one in result.samples[half:])  # fmt: skip
        raise Interrupted(dataclasses.replace(result, samples=(*result.samples[:half], *rest)))


def test_an_interrupt_keeps_and_judges_what_was_measured(stand: Stand) -> None:
    target = Struck(stand.clock)
    outcome = stand.loadtest(profile(), target)
    assert (outcome.exit_code, outcome.run.status) == (130, "interrupted")
    assert message(outcome).startswith("what was measured is kept: ")
    trial = measured(outcome)
    samples = RunFolder(outcome.folder).samples("loadtest")
    num = len(target.plans[1].requests)
    assert len(samples) == num
    assert trial.accounting is not None and trial.accounting.num_planned == num
    assert sum(trial.accounting.by_status.values()) == num
    assert trial.accounting.by_status["unsent"] == num - num // 2
    assert target.num_stops == 1


def test_an_interrupt_before_anything_was_measured_leaves_a_run_that_says_so(stand: Stand) -> None:
    target = FakeTarget(stand.clock, interrupts_at_run=0)
    outcome = stand.loadtest(profile(), target)
    assert (outcome.exit_code, outcome.run.status, outcome.trial) == (130, "interrupted", None)
    assert message(outcome) == "interrupted before anything was measured"
    assert RunFolder(outcome.folder).trials() == []
    assert target.num_stops == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TargetError("the engine's process was killed by signal 9"), 5),
        (KnobError("block_size does not fit"), 2),
        (ModelError("no such model"), 2),
        (RuntimeError("not foreseen"), 5),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("when", ["configure", "warm-up", "load"])
def test_an_error_is_raised_after_the_run_is_marked_failed(
    stand: Stand, error: Exception, code: int, when: str
) -> None:
    def strike(run: int) -> None:
        if run == {"configure": -1, "warm-up": 0, "load": 1}[when]:
            raise error

    refuses = (lambda _: error) if when == "configure" else (lambda _: None)
    target = FakeTarget(stand.clock, refuses=refuses, before_run=strike)
    with pytest.raises(type(error), match=str(error)):
        stand.loadtest(profile(), target)
    (path,) = stand.root.iterdir()
    run = RunFolder(path).read_run()
    assert run.status == "failed" and run.verdict is not None
    assert (run.verdict.exit_code, run.verdict.message) == (code, str(error))
    assert target.num_stops == 1


def test_a_target_that_cannot_be_opened_is_an_error(stand: Stand) -> None:
    def refuse(_: Profile) -> FakeTarget:
        raise TargetError("nothing to load at http://here")

    setting = dataclasses.replace(stand.setting(FakeTarget(stand.clock)), open_target=refuse)
    folder = stand.folder(profile())
    with pytest.raises(TargetError, match="nothing to load"):
        loadtest(folder, setting)
    assert folder.read_run().status == "failed"


def test_a_closed_loop_of_a_given_time_has_enough_to_do_and_counts_what_was_due(
    stand: Stand,
) -> None:
    target = FakeTarget(stand.clock)
    one = loaded(profile(), duration="20s", users=4)
    outcome = stand.loadtest(one, target)
    plan = target.plans[1]
    samples = RunFolder(outcome.folder).samples("loadtest")
    assert (plan.concurrency, plan.duration_s) == (4, 20.0)
    assert all(each.offset_ns is None for each in plan.requests)
    # the fake left requests over, so none of its four places ever waited for one
    assert len(samples) < len(plan.requests)
    begun_s = (max(each.intended_ns for each in samples) - samples[0].intended_ns) / 1e9
    assert 19 < begun_s <= 20
    accounting = measured(outcome).accounting
    assert accounting is not None, "those that were never due are not unsent"
    assert accounting.num_planned == len(samples) == sum(accounting.by_status.values())
    assert "unsent" not in accounting.by_status
    assert any(each.code == "closed_loop_hides_stalls" for each in measured(outcome).remarks)


def test_a_closed_loop_has_no_pace_where_no_warm_up_request_ended(stand: Stand) -> None:
    @dataclasses.dataclass
    class Refusing(FakeTarget):
        def run(self, plan: LoadPlan, progress: Progress | None = None) -> LoadResult:
            result = super().run(plan, progress)
            return dataclasses.replace(result, samples=tuple(
                dataclasses.replace(one, status=Status.REJECTED, error=SampleError.RATE_LIMITED)
                for one in result.samples))  # fmt: skip

    refused = r"no warm-up request ended ok \(4 rejected: rate_limited\)"
    with pytest.raises(TargetError, match=refused):
        stand.loadtest(loaded(profile(), duration="20s", users=4), Refusing(stand.clock))


def test_a_batch_is_measured_to_its_end(stand: Stand) -> None:
    one = loaded(profile("arrivals={kind: all_at_once}", "workload.num_requests=400"))
    outcome = stand.loadtest(one)
    assert len(RunFolder(outcome.folder).samples("loadtest")) == 400
    assert outcome.exit_code in (0, 1)


def test_the_longest_request_must_fit_what_the_server_takes(stand: Stand) -> None:
    """A URL tells its length in `effective`, as this fake does, and nothing is sent to it."""
    target = FakeTarget(stand.clock, max_model_len=100)
    said = r"takes 216 tokens \(200 prompt \+ 16 output\), but max_model_len of fake is 100 here"
    with pytest.raises(ProfileError, match=said) as caught:
        stand.loadtest(profile(f"target={URL}"), target)
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2
    assert target.num_runs == 0


def test_notes_of_the_run_are_told(stand: Stand) -> None:
    folder = stand.folder(profile(), ("mind this",))
    loadtest(folder, stand.setting(FakeTarget(stand.clock)))
    assert stand.watched.noted[0] == "mind this"
    assert folder.read_run().notes == ("mind this",)


POISSON = ArrivalKind.POISSON


@pytest.mark.parametrize(
    ("overrides", "asked", "expected"),
    [
        ([], {}, (POISSON, 10.0, None, 60.0)),
        ([], {"duration": "90s"}, (POISSON, 10.0, None, 90.0)),
        ([], {"rate_per_s": 3.5}, (POISSON, 3.5, None, 60.0)),
        ([], {"rate_per_s": 3.5, "duration": "1m30s"}, (POISSON, 3.5, None, 90.0)),
        ([], {"users": 6}, (ArrivalKind.CONCURRENCY, None, 6, 60.0)),
        ([], {"users": 6, "duration": "30s"}, (ArrivalKind.CONCURRENCY, None, 6, 30.0)),
        (["arrivals={kind: constant, rate_per_s: 2}"], {},
         (ArrivalKind.CONSTANT, 2.0, None, LOADTEST_DURATION_S)),
        (["arrivals={kind: gamma, rate_per_s: 2, cv: 3}"], {"rate_per_s": 4.0},
         (ArrivalKind.GAMMA, 4.0, None, LOADTEST_DURATION_S)),
        (["arrivals={kind: concurrency, concurrency: 9}"], {},
         (ArrivalKind.CONCURRENCY, None, 9, LOADTEST_DURATION_S)),
        (["arrivals={kind: concurrency, concurrency: 9}"], {"rate_per_s": 1.0},
         (POISSON, 1.0, None, LOADTEST_DURATION_S)),
        (["arrivals={kind: all_at_once}"], {}, (ArrivalKind.ALL_AT_ONCE, None, None, None)),
        (["arrivals={kind: all_at_once}"], {"users": 2},
         (ArrivalKind.CONCURRENCY, None, 2, LOADTEST_DURATION_S)),
        (["arrivals={kind: all_at_once}"], {"rate_per_s": 2.0, "duration": "10s"},
         (POISSON, 2.0, None, 10.0)),
    ],
)  # fmt: skip
def test_the_load_of_a_profile_can_be_another(
    overrides: list[str], asked: dict[str, Any], expected: tuple[object, ...]
) -> None:
    arrivals = loaded(profile(*overrides), **asked).arrivals
    assert (arrivals.kind, arrivals.rate_per_s, arrivals.concurrency, arrivals.duration) == expected


def test_another_load_keeps_all_else_and_counts_its_requests_again() -> None:
    one = loaded(profile(), rate_per_s=3.0, duration="100s")
    assert one.workload.num_requests == 300
    kept = {key: value for key, value in dump_profile(one).items() if key != "arrivals"}
    before = {key: value for key, value in dump_profile(profile()).items() if key != "arrivals"}
    kept["workload"]["num_requests"] = before["workload"]["num_requests"]
    assert kept == before
    assert restore_profile(dump_profile(one)) == one


def test_a_trace_lasts_as_long_as_it_is(tmp_path: Path) -> None:
    rows = [{"timestamp": 500 * at, "input_length": 20, "output_length": 8, "hash_ids": [at]}
            for at in range(5)]  # fmt: skip
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = f"name: replay\nworkload: {{seed: 4}}\narrivals: {{kind: trace, path: {path}}}\n"
    trace = parse_profile("p.yaml", text)
    assert loaded(trace) == trace
    assert loaded(trace, duration="1.2s").workload.num_requests == 3, "or its beginning"
    for asked in ({"rate_per_s": 2.0}, {"users": 2}):
        with pytest.raises(UsageError, match="cannot be had beside a trace") as caught:
            loaded(trace, **asked)
        assert "\n" not in str(caught.value)
    # it is replayed with its own prompts against a server that keeps its cache
    again, notes = with_fresh_prompts(trace.model_copy(update={"target": URL}), [])
    assert notes and restore_profile(dump_profile(again)) == again
    assert again.workload.longest_request_tokens == 28


@pytest.mark.parametrize(
    ("overrides", "asked", "said"),
    [
        (["driver=offline"], {}, "a load test goes over HTTP"),
        ([], {"rate_per_s": 1.0, "users": 1}, "give one of them"),
        ([], {"duration": "soon"}, "--duration must be a time such as"),
        ([], {"duration": "0s"}, "--duration must be longer than nothing"),
        (["arrivals={kind: all_at_once}"], {"duration": "9s"}, "give --rate or --users beside it"),
        ([], {"rate_per_s": 0.0}, "--rate 0"),
        ([], {"rate_per_s": float("nan")}, "--rate nan"),
        ([], {"rate_per_s": 1e6}, "arrivals.duration: makes 60,000,000 requests"),
        ([], {"users": 0}, "--users 0"),
        ([], {"users": -3}, "--users -3"),
    ],
)
def test_what_makes_no_load_is_said_in_one_line(
    overrides: list[str], asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        loaded(profile(*overrides), **asked)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_url_is_met_with_fresh_prompts_unless_a_seed_was_asked_for() -> None:
    here = profile()
    assert with_fresh_prompts(here, []) == (here, ())
    there = profile(f"target={URL}", "workload.seed=7")
    assert with_fresh_prompts(there, [f"target={URL}", "workload.seed=7"]) == (there, ())
    drawn = [with_fresh_prompts(there, ["slo.ttft_p99_ms=3"]) for _ in range(3)]
    seeds = [one.workload.seed for one, _ in drawn]
    assert len(set(seeds)) == 3  # of 2^32
    for seed, (one, notes) in zip(seeds, drawn, strict=True):
        assert f"--set workload.seed={seed}" in notes[0]
        work = one.workload.model_copy(update={"seed": 7})
        assert one.model_copy(update={"workload": work}) == there
        assert restore_profile(dump_profile(one)) == one


def recommended_run(stand: Stand) -> Path:
    """The run folder of a sweep that recommended something."""
    one = profile("knobs={}", "search.precision=[bf16, int8]", "search.max_num_seqs=[2, 8]",
                  "arrivals={kind: constant, rate_per_s: 20}", "workload.num_requests=30"
    )  # fmt: skip
    folder = sweeping.begin(one, stand.root, ["sweep", "p.yaml"], {})
    outcome = sweeping.sweep(folder, stand.setting(FakeTarget(stand.clock)))
    assert outcome.recommendation is not None
    return outcome.folder


def test_the_configuration_of_a_recommendation(stand: Stand) -> None:
    one = profile()
    assert configuration(one, None, stand.root) == complete({"max_num_seqs": 8})
    path = recommended_run(stand)
    for name in (path.name, str(path), str(path / "recommended.yaml")):
        knobs = configuration(one, name, stand.root)
        assert knobs == complete(knobs) and knobs["precision"] == "int8"
    target = FakeTarget(stand.clock)
    folder = begin(one, knobs, stand.root, [], {})
    trial = measured(loadtest(folder, stand.setting(target)))
    assert target.configured == [knobs] and trial.knobs == knobs


def test_a_recommendation_that_is_none_is_said(stand: Stand, tmp_path: Path) -> None:
    one = profile()
    with pytest.raises(UsageError, match="no run called nothing"):
        configuration(one, "nothing", stand.root)
    path = recommended_run(stand)
    # another file beside it is not taken for it
    with pytest.raises(UsageError, match="no run called"):
        configuration(one, str(path / "run.json"), stand.root)
    with pytest.raises(UsageError, match="cannot be applied to http"):
        configuration(profile(f"target={URL}"), str(path), stand.root)
    (path / "recommended.yaml").write_text("knobs: 3\n")
    with pytest.raises(DstuneError, match=r"recommended.yaml is damaged"):
        configuration(one, str(path), stand.root)
    (path / "recommended.yaml").unlink()
    with pytest.raises(UsageError, match="its sweep recommended nothing"):
        configuration(one, str(path), stand.root)
