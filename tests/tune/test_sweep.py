"""Whole sweeps against the fake target with its fake clock."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from fakes import TEXT, FakeClock, FakeTarget, Recorder

from dstune.errors import KnobError, ModelError, NotComparable, ProfileError, TargetError
from dstune.knobs import KnobValue
from dstune.measure.host import CpuReading
from dstune.measure.record import Claim
from dstune.measure.run_folder import RunFolder
from dstune.profile.load import parse_profile
from dstune.profile.model import Profile
from dstune.tune.bench import Setting
from dstune.tune.sweep import Outcome, begin, resume, sweep

ENVIRONMENT = {"cpu": {"model": "fake"}}
PROFILE = """
name: chat
scenario: low_latency
workload:
  prompt_tokens: {distribution: lognormal, median: 40, sigma: 0.5, max: 200}
  output_tokens: 16
  num_requests: 30
arrivals: {kind: poisson, rate_per_s: 20}
slo: {ttft_p99_ms: 400, tpot_p99_ms: 12}
search: {max_num_seqs: [2, 4, 8], precision: [bf16, int8]}
budget: {repetitions: 2}
"""


def profile(*overrides: str, text: str = PROFILE) -> Profile:
    return parse_profile("p.yaml", text, overrides)


@dataclasses.dataclass
class Stand:
    """A fake target with everything that a sweep needs around it."""

    root: Path
    clock: FakeClock = dataclasses.field(default_factory=FakeClock)
    watched: Recorder = dataclasses.field(default_factory=Recorder)

    def setting(self, target: FakeTarget) -> Setting:
        return Setting(lambda _: target, self.watched, lambda: TEXT, self.clock.now_ns,
                       self.clock.read_cpu)  # fmt: skip

    def sweep(self, one: Profile, target: FakeTarget | None = None) -> Outcome:
        folder = begin(one, self.root, ["sweep", "p.yaml"], ENVIRONMENT)
        return sweep(folder, self.setting(target or FakeTarget(self.clock)))


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, FakeTarget]:
    """One finished sweep and its target, for tests that only look."""
    stand = Stand(tmp_path_factory.mktemp("done"))
    target = FakeTarget(stand.clock)
    return stand.sweep(profile(), target), target


Done = tuple[Outcome, FakeTarget]


def test_a_sweep_recommends_what_the_fake_s_arithmetic_says(done: Done) -> None:
    outcome, _ = done
    assert outcome.exit_code == 0
    assert outcome.run.status == "finished"
    search = [one for one in outcome.trials if one.phase == "search"]
    assert [one.trial_id for one in search] == [one.trial_id for one in outcome.run.plan]
    chosen = outcome.recommendation
    assert chosen is not None
    # goodput is equal wherever the SLO is met, so the most room below it decides
    assert chosen.changed["precision"] == "int8"
    assert chosen.default is not None and not all(one.is_met for one in chosen.default.slo)
    assert chosen.gain["tpot_p99_ms"].value == pytest.approx(
        (0.004 + 0.0005 * int(str(chosen.knobs["max_num_seqs"]))) * 0.6 / 0.020, rel=1e-6
    )


def test_figures_come_from_the_confirmation_with_seeds_of_its_own(done: Done) -> None:
    outcome, _ = done
    chosen = outcome.recommendation
    assert chosen is not None
    for side in (
        chosen.recommended,
        chosen.default,
        chosen.runner_up and chosen.runner_up.measured,
    ):
        assert side is not None
        assert [one.repetition for one in side.samples] == [2, 3, 4]
        assert {one.trial_id for one in side.samples} == {
            f"c{at}-{side.trial_id}" for at in range(3)
        }


def test_a_repetition_meets_every_trial_with_the_same_prompts(done: Done) -> None:
    outcome, target = done
    by_repetition = defaultdict(set)
    for plan in target.plans:
        first = plan.requests[0].request_id
        if not first.startswith("warmup"):
            by_repetition[first].add(plan)
    assert {len(plans) for plans in by_repetition.values()} == {1}
    assert len(by_repetition) == 2 + outcome.run.confirmation_rounds


def test_caches_are_reset_before_each_repetition_and_warmup_is_not_in_the_samples(
    done: Done,
) -> None:
    outcome, target = done
    measured = sum(len(one.repetitions) for one in outcome.trials)
    assert target.num_resets == measured
    assert target.num_runs == measured + len(outcome.trials)
    folder = RunFolder(outcome.folder)
    for one in outcome.trials:
        ids = {each.request_id for each in folder.samples(one.trial_id)}
        assert len(ids) == 30 * len(one.repetitions)
        assert not any(each.startswith("warmup") for each in ids)


def test_confirmation_is_interleaved(done: Done) -> None:
    outcome, _ = done
    confirmed = [one.trial_id for one in outcome.trials if one.phase == "confirm"]
    rounds = [one.split("-")[0] for one in confirmed]
    assert rounds == sorted(rounds) and len(set(rounds)) == 3
    orders = {tuple(one.split("-")[1] for one in confirmed if one.startswith(f"c{at}-"))
              for at in range(3)}  # fmt: skip
    assert len(orders) > 1  # not always in the same order


def test_every_figure_of_the_recommendation_follows_from_the_raw_samples(stand: Stand) -> None:
    """An independent computation from parquet by the definitions in design.md."""
    outcome = stand.sweep(profile(), FakeTarget(stand.clock, noise=0.1))
    chosen = yaml.safe_load((outcome.folder / "recommended.yaml").read_text())
    sides = [chosen["recommended"], chosen["default"], chosen["runner_up"]["measured"]]
    for side in sides:
        tables = [
            pq.read_table(outcome.folder / "trials" / ref["trial_id"] / "requests.parquet")
            .to_pandas().query(f"repetition == {ref['repetition']}")
            for ref in side["samples"]
        ]  # fmt: skip
        ttft, tpot, throughput, goodput = [], [], [], []
        for table in tables:
            first = (table.first_token_ns - table.intended_ns) / 1e6
            each = (table.last_token_ns - table.first_token_ns) / (table.output_tokens - 1) / 1e6
            ttft += list(first)
            tpot += list(each)
            begin_ns, end_ns = table.done_ns.min(), table.intended_ns.max()
            times = np.concatenate(
                [row.sent_ns + row.chunk_offsets_ns for row in table.itertuples()]
            )
            inside = ((times > begin_ns) & (times <= end_ns)).sum()
            throughput.append(inside / (end_ns - begin_ns) * 1e9)
            span_s = (table.intended_ns.max() - table.intended_ns.min()) / 1e9
            good = ((first <= 400) & (each <= 12)).sum()
            goodput.append(good / (span_s * len(table) / (len(table) - 1)))
        figures = side["figures"]
        recomputed = {
            "ttft_p50_ms": np.percentile(ttft, 50), "ttft_p99_ms": np.percentile(ttft, 99),
            "tpot_p99_ms": np.percentile(tpot, 99), "goodput_per_s": np.mean(goodput),
            "output_tokens_per_s": np.mean(throughput),
        }  # fmt: skip
        for name, value in recomputed.items():
            assert figures[name]["value"] == pytest.approx(value, rel=1e-5), name


def test_an_offline_batch_takes_the_most_throughput(stand: Stand) -> None:
    outcome = stand.sweep(profile(
        "scenario=high_throughput", "arrivals={kind: all_at_once}", "slo={}",
        "search={max_num_seqs: [2, 8, 16, 32], precision: [bf16, int8]}",
        "workload.num_requests=64",
    ))  # fmt: skip
    chosen = outcome.recommendation
    assert chosen is not None
    assert chosen.changed == {"precision": "int8"}  # the default's 32 sequences
    best = max((one for one in outcome.trials if one.phase == "search"),
               key=lambda one: one.figures["output_tokens_per_s"].value or 0)  # fmt: skip
    assert best.trial_id == chosen.recommended.trial_id


def test_the_default_is_recommended_where_it_is_best(stand: Stand) -> None:
    outcome = stand.sweep(profile("search={max_num_seqs: [1]}", "slo={}",
                                  "scenario=high_throughput"))  # fmt: skip
    chosen = outcome.recommendation
    assert chosen is not None and chosen.changed == {}
    assert chosen.gain["output_tokens_per_s"].value == pytest.approx(1)


def test_nothing_meets_the_slo(stand: Stand) -> None:
    outcome = stand.sweep(profile("slo.tpot_p99_ms=1"))
    assert outcome.exit_code == 1
    assert outcome.recommendation is None
    assert not (outcome.folder / "recommended.yaml").exists()
    assert outcome.run.verdict is not None
    assert "none of 7 configurations meets the SLO; the nearest is" in outcome.run.verdict.message
    assert "tpot_p99_ms" in outcome.run.verdict.message
    assert outcome.run.verdict.nearest is not None
    assert not any(one.phase == "confirm" for one in outcome.trials)


def test_what_met_the_slo_by_luck_is_not_recommended(stand: Stand) -> None:
    target = FakeTarget(stand.clock)

    def slow_down_after_the_search(number: int) -> None:
        if number == 7 * 3:  # warm-up and two repetitions of each trial
            target.noise = -3.0

    target.before_run = slow_down_after_the_search
    outcome = stand.sweep(profile("slo.tpot_p99_ms=3.5"), target)
    assert outcome.exit_code == 1
    assert outcome.recommendation is None
    assert outcome.run.verdict is not None
    assert "missed it when it was measured again" in outcome.run.verdict.message


def refuse_int8(kind: type[Exception]) -> Any:
    def refuses(knobs: Mapping[str, KnobValue]) -> Exception | None:
        return kind("no int8 on this machine") if knobs["precision"] == "int8" else None

    return refuses


@pytest.mark.parametrize("kind", [KnobError, ModelError])
def test_an_infeasible_trial_is_recorded_with_its_reason(
    stand: Stand, kind: type[Exception]
) -> None:
    target = FakeTarget(stand.clock, refuses=refuse_int8(kind))
    outcome = stand.sweep(profile(), target)
    infeasible = [one for one in outcome.trials if not one.is_measured]
    assert {one.knobs["precision"] for one in infeasible} == {"int8"} and len(infeasible) == 3
    assert {(one.reason, one.error) for one in infeasible} == {
        ("no int8 on this machine", kind.__name__)
    }
    assert outcome.exit_code == 0
    assert target.num_stops == 1


def test_a_target_that_dies_is_opened_again_for_the_next_trial(stand: Stand) -> None:
    def refuses(knobs: Mapping[str, KnobValue]) -> Exception | None:
        return TargetError("out of memory") if knobs["max_num_seqs"] == 8 else None

    target = FakeTarget(stand.clock, refuses=refuses)
    outcome = stand.sweep(profile(), target)
    assert outcome.exit_code == 0
    assert target.num_stops == 3  # twice for a death, once at the end
    assert sum(one.error == "TargetError" for one in outcome.trials) == 2
    assert outcome.recommendation is not None
    said = {one.code: one.message for one in outcome.recommendation.remarks}
    assert "out of memory" in said["failed_trials"], "candidates were lost, and that is said"


def test_a_target_that_keeps_dying_ends_the_sweep(stand: Stand) -> None:
    target = FakeTarget(stand.clock, refuses=refuse_int8(TargetError))
    with pytest.raises(TargetError, match="died 3 times in a row"):
        stand.sweep(profile(), target)


def test_a_target_that_fails_on_the_default_ends_the_sweep(stand: Stand) -> None:
    target = FakeTarget(stand.clock, refuses=lambda _: TargetError("no such file"))
    with pytest.raises(TargetError, match="the default configuration failed: no such file; log: "):
        stand.sweep(profile(), target)
    run = RunFolder(next(stand.root.iterdir())).read_run()
    assert run.status == "failed" and run.verdict is not None and run.verdict.exit_code == 5


def test_a_default_that_this_model_cannot_run_is_said_and_the_search_goes_on(stand: Stand) -> None:
    def refuses(knobs: Mapping[str, KnobValue]) -> Exception | None:
        return KnobError("32 sequences do not fit") if knobs["max_num_seqs"] == 32 else None

    outcome = stand.sweep(profile(), FakeTarget(stand.clock, refuses=refuses))
    assert "the default configuration cannot run: 32 sequences do not fit" in stand.watched.noted
    chosen = outcome.recommendation
    assert chosen is not None and chosen.default is None and chosen.gain == {}
    assert "default_not_measured" in {one.code for one in chosen.remarks}


def test_nothing_can_run(stand: Stand) -> None:
    target = FakeTarget(stand.clock, refuses=lambda _: KnobError("KV cache too small"))
    outcome = stand.sweep(profile(), target)
    assert outcome.exit_code == 2
    assert outcome.run.verdict is not None
    assert outcome.run.verdict.message == "no configuration can run: KV cache too small"


def test_a_request_that_the_model_cannot_take_is_the_profile_s_error(stand: Stand) -> None:
    target = FakeTarget(stand.clock, max_model_len=100)
    with pytest.raises(ProfileError, match=r"216 tokens \(200 prompt \+ 16 output\), but max_mod"):
        stand.sweep(profile(), target)


def test_too_few_samples_are_said_and_enough_are_claimed(stand: Stand) -> None:
    few = stand.sweep(profile("search={max_num_seqs: [4]}")).recommendation
    assert few is not None and few.recommended.claim is Claim.INCONCLUSIVE
    assert "too_few_samples" in {one.code for one in few.remarks}
    many = profile("search={max_num_seqs: [4]}", "workload.num_requests=120")
    enough = stand.sweep(many).recommendation
    assert enough is not None and enough.recommended.claim is Claim.PASS
    assert "too_few_samples" not in {one.code for one in enough.remarks}


def test_the_budget_is_kept_and_what_was_left_out_is_listed(stand: Stand) -> None:
    start_ns = stand.clock.ns
    outcome = stand.sweep(profile("budget.wall=60s", "search.block_size=[16, 32, 64]"))
    spent_s = (stand.clock.ns - start_ns) / 1e9
    assert 30 < spent_s < 66
    left_out = outcome.run.not_tried
    tried = {one.trial_id for one in outcome.trials}
    assert left_out and tried.isdisjoint(left_out)
    planned = {one.trial_id for one in outcome.run.plan}
    assert planned == set(left_out) | {one for one in tried if one.startswith("t")}
    assert any("are not tried" in note for note in stand.watched.noted)
    assert outcome.recommendation is not None  # time was left to confirm


def test_a_tight_budget_still_tries_presets_and_all_over_the_grid(stand: Stand) -> None:
    outcome = stand.sweep(profile("budget.wall=60s", "search.block_size=[16, 32, 64]",
                                  "presets=[{max_num_seqs: 6, precision: int8}]"))  # fmt: skip
    tried = [one for one in outcome.trials if one.phase == "search"]
    assert [one.origin for one in tried[:2]] == ["default", "preset"]
    assert len({one.knobs["precision"] for one in tried if one.origin == "grid"}) == 2
    assert len(tried) < len(outcome.run.plan)


def test_where_nothing_meets_the_slo_hardly_any_time_is_kept_for_confirming(stand: Stand) -> None:
    met = stand.sweep(profile("budget.wall=60s", "search.block_size=[16, 32, 64]"))
    missed = stand.sweep(profile("budget.wall=60s", "search.block_size=[16, 32, 64]",
                                 "slo.tpot_p99_ms=1"))  # fmt: skip
    assert len(missed.run.not_tried) < len(met.run.not_tried)
    assert missed.exit_code == 1


def test_progress_counts_trials_and_estimates_what_is_left(stand: Stand) -> None:
    start_ns = stand.clock.ns
    ends_ns = []
    target = FakeTarget(stand.clock)
    outcome = stand.sweep(profile(), target)
    total_s = (stand.clock.ns - start_ns) / 1e9
    first, *rest = stand.watched.started
    assert first.eta_s is None and (first.number, first.total) == (1, 7)
    assert all(one.eta_s is not None for one in rest)
    half = rest[len(rest) // 2]
    ends_ns = [one.elapsed_s for one in outcome.trials[len(rest) // 2 + 1 :]]
    assert half.eta_s == pytest.approx(sum(ends_ns), rel=0.5)
    assert rest[0].eta_s == pytest.approx(total_s, rel=0.8)
    assert rest[-1].best is not None
    assert stand.watched.advanced[0] == (1, 2, 30, 30)


def continue_run(stand: Stand, folder: Path) -> Outcome:
    resume(RunFolder(folder), ENVIRONMENT)
    return sweep(RunFolder(folder), stand.setting(FakeTarget(stand.clock)))


@pytest.mark.parametrize("at_run", [0, 2, 10, 22, 42])
def test_an_interrupted_sweep_goes_on_to_the_same_result(
    stand: Stand, done: Done, at_run: int
) -> None:
    whole, _ = done
    target = FakeTarget(stand.clock, interrupts_at_run=at_run)
    cut = stand.sweep(profile(), target)
    assert (cut.exit_code, cut.run.status) == (130, "interrupted")
    assert target.num_stops == 1
    assert cut.run.verdict is not None
    assert cut.run.verdict.message == f"go on with: dstune sweep --resume {cut.folder}"
    kept = {one.trial_id: one for one in cut.trials}
    resumed = continue_run(stand, cut.folder)
    assert resumed.exit_code == 0
    names = [(one.trial_id, one.knobs, one.status) for one in resumed.trials]
    assert names == [(one.trial_id, one.knobs, one.status) for one in whole.trials]
    for one in resumed.trials:
        assert one.trial_id not in kept or kept[one.trial_id] == one
    assert resumed.recommendation is not None and whole.recommendation is not None
    assert resumed.recommendation.recommended == whole.recommendation.recommended


def test_resuming_a_finished_run_measures_nothing(stand: Stand) -> None:
    done = stand.sweep(profile())
    resume(RunFolder(done.folder), ENVIRONMENT)
    target = FakeTarget(stand.clock)
    again = sweep(RunFolder(done.folder), stand.setting(target))
    assert target.num_runs == 0
    assert again.trials == done.trials and again.recommendation == done.recommendation


def test_a_run_does_not_go_on_on_another_machine(stand: Stand) -> None:
    done = stand.sweep(profile())
    with pytest.raises(NotComparable, match=r"cpu\.model: fake then, other now"):
        resume(RunFolder(done.folder), {"cpu": {"model": "other"}})


def test_a_busy_host_is_remarked_with_its_evidence(stand: Stand) -> None:
    folder = begin(profile(), stand.root, ["sweep", "p.yaml"], ENVIRONMENT)
    setting = dataclasses.replace(
        stand.setting(FakeTarget(stand.clock)),
        read_cpu=quiet_after(stand.clock, 1000, 0.15),
    )
    chosen = sweep(folder, setting).recommendation
    assert chosen is not None
    busy = [one for one in chosen.remarks if one.code == "busy_host"]
    assert len(busy) == 1 and "others took up to 15% of the CPU" in busy[0].message


def test_random_weights_get_random_prompts_and_it_is_said(stand: Stand) -> None:
    class NoTokenizer(FakeTarget):
        def tokenize(self, text: str) -> list[int]:
            raise ModelError("no tokenizer")

    outcome = stand.sweep(profile("weights=random"), NoTokenizer(stand.clock))
    assert outcome.exit_code == 0
    assert any("random token ids" in note for note in stand.watched.noted)
    with pytest.raises(ModelError, match="no tokenizer"):
        stand.sweep(profile(), NoTokenizer(stand.clock))


def quiet_after(
    clock: FakeClock, num_contended: int, foreign_share: float
) -> Callable[[], CpuReading]:
    """A host of which others take a share until the runs (two readings each) are used up."""
    readings = iter(range(1 << 30))
    taken_s = 0.0
    before_s = clock.ns / 1e9

    def read() -> CpuReading:
        nonlocal taken_s, before_s
        reading = clock.read_cpu()
        if next(readings) < 2 * num_contended:
            taken_s += foreign_share * reading.num_cores * (clock.ns / 1e9 - before_s)
        before_s = clock.ns / 1e9
        return dataclasses.replace(reading, busy_s=reading.busy_s + taken_s)

    return read


def sweep_beside_others(stand: Stand, num_contended: int, share: float) -> Outcome:
    folder = begin(profile(), stand.root, ["sweep", "p.yaml"], ENVIRONMENT)
    setting = dataclasses.replace(
        stand.setting(FakeTarget(stand.clock)),
        read_cpu=quiet_after(stand.clock, num_contended, share),
    )
    return sweep(folder, setting)


def test_a_trial_that_cannot_be_trusted_is_repeated_once(stand: Stand) -> None:
    outcome = sweep_beside_others(stand, num_contended=2, share=0.4)
    assert outcome.exit_code == 0
    assert all(one.is_trusted for one in outcome.trials)
    again = [one for one in stand.watched.noted if "is measured again: host_contended" in one]
    assert [one.split()[0] for one in again] == ["t000"]
    assert stand.watched.finished[0].elapsed_s > stand.watched.finished[1].elapsed_s


def test_a_trial_that_cannot_be_trusted_twice_is_not_ranked(stand: Stand) -> None:
    outcome = sweep_beside_others(stand, num_contended=8, share=0.4)  # two trials, twice each
    chosen = outcome.recommendation
    assert outcome.exit_code == 0 and chosen is not None
    assert [one.trial_id for one in outcome.trials if not one.is_trusted] == ["t000", "t001"]
    assert chosen.recommended.trial_id not in ("t000", "t001")
    assert chosen.default is None and "t000" not in outcome.run.finalists
    aside = [one.message for one in chosen.remarks if one.code == "set_aside"]
    assert len(aside) == 1 and "t000 (host_contended); t001 (host_contended)" in aside[0]


def test_nothing_that_can_be_trusted_is_inconclusive(stand: Stand) -> None:
    outcome = sweep_beside_others(stand, num_contended=1000, share=0.4)
    assert outcome.exit_code == 3 and outcome.recommendation is None
    assert outcome.run.verdict is not None
    assert "no trial can be trusted; the last: host_contended" in outcome.run.verdict.message


def test_a_confirmation_that_cannot_be_trusted_is_inconclusive(stand: Stand) -> None:
    quiet = stand.sweep(profile())
    num_search_runs = sum(len(one.repetitions) for one in quiet.trials if one.phase == "search")
    clock = FakeClock()
    stand = Stand(stand.root / "again", clock)
    inner = quiet_after(clock, 1000, 0.4)
    count = iter(range(1 << 30))
    setting = dataclasses.replace(
        stand.setting(FakeTarget(clock)),
        read_cpu=lambda: inner() if next(count) >= 2 * num_search_runs else clock.read_cpu(),
    )
    outcome = sweep(begin(profile(), stand.root, ["sweep", "p.yaml"], ENVIRONMENT), setting)
    assert outcome.exit_code == 3 and outcome.run.verdict is not None
    assert "no round of the confirmation can be trusted" in outcome.run.verdict.message
