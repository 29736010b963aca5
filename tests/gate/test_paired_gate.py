"""A gate from sides to verdict, over a target whose clock and noise are exact."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from fakes import TEXT, FakeClock, FakeTarget, Recorder

from dstune.errors import NotComparable, UsageError
from dstune.gate import gate
from dstune.gate.plan import GatePlan, GateSetting
from dstune.gate.sides import Side, Source, check_sides
from dstune.knobs import complete
from dstune.measure.comparison import GateResult, MetricChange
from dstune.measure.host import CpuReading
from dstune.measure.record import Claim
from dstune.measure.run_folder import RunFolder
from dstune.profile.load import parse_profile
from dstune.profile.model import Profile

PROFILE = """
name: short
scenario: high_throughput
workload: {prompt_tokens: 16, output_tokens: 8, num_requests: 12}
arrivals: {kind: concurrency, concurrency: 4}
"""


@dataclass
class Watcher(Recorder):
    """Keeps what a gate told."""

    pairs: list[tuple[int, int, float | None]] = field(default_factory=list)
    looks: list[tuple[MetricChange, ...]] = field(default_factory=list)

    def pair(self, number: int, most: int, eta_s: float | None) -> None:
        self.pairs.append((number, most, eta_s))

    def looked(self, changes: tuple[MetricChange, ...]) -> None:
        self.looks.append(changes)


@dataclass
class Hall:
    """Both sides on one clock; `opened` tells in which order their loads came."""

    tmp_path: Path
    slowdown: float = 0.0
    jitter_sd: float = 0.0
    seed: int = 0
    change: dict[str, object] = field(default_factory=dict)  # of the candidate's target
    nlls: dict[str, list[float]] = field(default_factory=dict)  # by side, of the text's windows
    busy_from_run: int | None = None  # runs of all targets from which others use the machine
    busy_for: int = 1
    watcher: Watcher = field(default_factory=Watcher)
    clock: FakeClock = field(default_factory=FakeClock)
    order: list[str] = field(default_factory=list)
    targets: list[FakeTarget] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.profile = parse_profile("short.yaml", PROFILE)
        self.jitter = random.Random(self.seed)

    def side(self, name: str, profile: Profile | None = None, **knobs: object) -> Side:
        mine = profile or self.profile
        return Side(name, mine, complete({**mine.knobs, **knobs}))  # type: ignore[arg-type]

    def open_side(self, side: Side, traces: bool) -> FakeTarget:
        is_candidate = side.name == "candidate"

        def note(_number: int) -> None:
            self.order.append(side.name)

        target = FakeTarget(
            clock=self.clock, jitter=self.jitter, jitter_sd=self.jitter_sd, before_run=note,
            slowdown=self.slowdown if is_candidate else 0.0,
        )  # fmt: skip
        if side.name in self.nlls:
            target.score = lambda windows, context: self.nlls[side.name]  # type: ignore[attr-defined]
        for key, value in (self.change if is_candidate else {}).items():
            setattr(target, key, value)
        self.targets.append(target)
        return target

    def watch_alive(self) -> list[int]:
        """How many targets are up whenever one is opened."""
        counts: list[int] = []
        opened = self.open_side

        def watched(side: Side, traces: bool) -> FakeTarget:
            target = opened(side, traces)
            counts.append(sum(not one.num_stops for one in self.targets))
            return target

        self.open_side = watched  # type: ignore[method-assign]
        return counts

    def read_cpu(self) -> CpuReading:
        seconds = self.clock.ns / 1e9
        first, num = self.busy_from_run, len(self.order)
        is_busy = first is not None and first <= num < first + self.busy_for
        return CpuReading(seconds, 2 * seconds, 0.0, 0.0 if is_busy else 2 * seconds, 2)

    def run(
        self, plan: GatePlan | None = None, candidate: Side | None = None
    ) -> tuple[GateResult, RunFolder]:
        sides = self.side("baseline"), candidate or self.side("candidate", block_size=32)
        folder = gate.begin(*sides, self.tmp_path, [], {})
        setting = GateSetting(
            self.open_side, self.watcher, lambda: TEXT, {}, self.clock.now_ns, self.read_cpu
        )
        plan = replace(plan or GatePlan(seed=3), explains=False)
        return gate.carry_out(folder, *sides, plan, setting), folder


def test_a_large_slowdown_fails_at_the_first_look_and_is_kept_on_disk(tmp_path: Path) -> None:
    hall = Hall(tmp_path, slowdown=0.25, jitter_sd=0.01)
    result, folder = hall.run()
    assert (result.claim, result.exit_code, result.num_pairs) == (Claim.FAIL, 1, 5)
    assert "tpot_p95_ms is 2" in result.message and "% slower (at least 2" in result.message
    changes = {one.metric: one for one in result.metrics}
    assert list(changes) == ["output_tokens_per_s", "ttft_p50_ms", "ttft_p95_ms", "tpot_p95_ms"]
    assert changes["tpot_p95_ms"].change.value == pytest.approx(0.25, abs=0.02)
    assert "p95 stands in for p99: 12 completed" in changes["tpot_p95_ms"].note
    assert GateResult.model_validate_json((folder.path / "gate.json").read_bytes()) == result
    run = folder.read_run()
    assert run.status == "finished" and run.verdict is not None and run.verdict.exit_code == 1
    assert len(folder.trials()) == 10
    assert len(folder.samples("p03-candidate")) == 12


def test_the_same_thing_passes_and_the_message_says_what_is_excluded(tmp_path: Path) -> None:
    result, _ = Hall(tmp_path, jitter_sd=0.01).run()
    assert (result.claim, result.exit_code) == (Claim.PASS, 0)
    highest = max(one.change.high or 0.0 for one in result.metrics)
    assert result.message == f"pass: no metric is slower by {highest:.1%} or more"
    assert highest < 0.10


def test_too_much_noise_ends_inconclusive_after_twelve_pairs(tmp_path: Path) -> None:
    hall = Hall(tmp_path, slowdown=0.06, jitter_sd=0.2)
    result, _ = hall.run()
    assert (result.claim, result.exit_code, result.num_pairs) == (Claim.INCONCLUSIVE, 3, 12)
    assert len(hall.watcher.looks) == 3
    assert any((one.pairs_needed or 0) > 12 for one in result.metrics)
    assert "pairs would decide" in result.message


def test_order_is_random_within_pairs_and_the_same_for_a_seed(tmp_path: Path) -> None:
    def orders(seed: int) -> list[str]:
        hall = Hall(tmp_path, slowdown=0.06, jitter_sd=0.2)
        hall.run(GatePlan(seed=seed))
        loads = hall.order
        # of each pair: two warm-ups at the start, then before each load one more
        return [loads[at + 3] for at in range(0, len(loads), 6)]

    first = orders(3)
    assert len(first) == 12
    assert {"baseline", "candidate"} == set(first)
    assert first == orders(3) and first != orders(4)


def test_each_pair_has_processes_of_its_own_and_both_meet_the_same_prompts(tmp_path: Path) -> None:
    hall = Hall(tmp_path, slowdown=0.25, jitter_sd=0.01)
    hall.run()
    assert len(hall.targets) == 10 and all(one.num_stops for one in hall.targets)
    for before, after in zip(hall.targets[::2], hall.targets[1::2], strict=True):
        assert before.plans[-1] == after.plans[-1]
        assert before.num_resets == after.num_resets == 1
        assert before.num_tokenized == after.num_tokenized == 1  # a server's tokens are its own
    assert hall.targets[0].plans[-1] != hall.targets[2].plans[-1]


def test_one_side_at_a_time_where_both_do_not_fit(tmp_path: Path) -> None:
    hall = Hall(tmp_path, slowdown=0.25, jitter_sd=0.01)
    plan = GatePlan(has_both_up=False, num_loads=2, seed=3)
    alive = hall.watch_alive()
    result, _ = hall.run(plan)
    assert result.claim is Claim.FAIL and max(alive) == 1
    first = hall.order[:5]  # warm-up, then each load with one
    assert len(set(first)) == 1 and set(hall.order[5:10]).isdisjoint(first)


def test_several_loads_of_a_pair_take_turns(tmp_path: Path) -> None:
    hall = Hall(tmp_path, slowdown=0.25, jitter_sd=0.01)
    result, folder = hall.run(GatePlan(num_loads=2, seed=3))
    assert result.baseline.runs[0].num_ok == 24
    loads = hall.order[2:10:2]  # of the first pair, without the warm-ups
    assert loads[0] != loads[1] and loads[1] == loads[2] and loads[2] != loads[3]
    assert {one.trial_id for one in folder.trials()[:4]} == {
        "p01-baseline-1", "p01-baseline-2", "p01-candidate-1", "p01-candidate-2"}  # fmt: skip


def test_a_pair_that_cannot_be_trusted_is_measured_again(tmp_path: Path) -> None:
    hall = Hall(tmp_path, slowdown=0.25, jitter_sd=0.01, busy_from_run=8, busy_for=4)
    result, folder = hall.run()
    assert (result.claim, result.num_repeated, result.num_pairs) == (Claim.FAIL, 1, 5)
    assert [one.name for one in result.candidate.runs][:2] == ["p01-candidate", "p02r-candidate"]
    assert any("pair 2 is measured again" in one for one in hall.watcher.noted)
    assert len(folder.trials()) == 12


def test_a_host_that_stays_busy_ends_inconclusive(tmp_path: Path) -> None:
    result, _ = Hall(tmp_path, jitter_sd=0.01, busy_from_run=8, busy_for=1000).run()
    assert (result.claim, result.exit_code, result.num_pairs) == (Claim.INCONCLUSIVE, 3, 1)
    assert "pair 2 cannot be trusted" in result.message


def test_a_budget_ends_before_a_look_that_it_has_no_time_for(tmp_path: Path) -> None:
    for budget_s, num_pairs, following in ((40.0, 5, 8), (10.0, 1, 5)):
        hall = Hall(tmp_path, slowdown=0.06, jitter_sd=0.2)  # a pair takes between 6 and 8 s
        result, _ = hall.run(GatePlan(budget_s=budget_s))
        assert (result.claim, result.num_pairs) == (Claim.INCONCLUSIVE, num_pairs)
        assert f"the budget has no time for {following} pairs" in result.message


def test_an_interrupt_keeps_the_pairs_so_far(tmp_path: Path) -> None:
    hall = Hall(tmp_path, slowdown=0.06, jitter_sd=0.2)
    count = iter(range(1000))

    def stop(_number: int) -> None:
        if next(count) == 21:
            raise KeyboardInterrupt

    hall.change["before_run"] = stop
    result, folder = hall.run()
    assert result.exit_code == 130 and result.num_pairs == 7
    assert folder.read_run().status == "interrupted"
    assert all(one.num_stops for one in hall.targets)


def test_failed_requests_are_not_comparable(tmp_path: Path) -> None:
    hall = Hall(tmp_path)
    hall.change["failing"] = 3
    with pytest.raises(NotComparable, match="3 of 12 requests of the candidate failed in p01-cand"):
        hall.run()
    (folder,) = tmp_path.iterdir()
    assert RunFolder(folder).read_run().status == "failed"


def test_another_model_found_out_after_the_start_is_not_comparable(tmp_path: Path) -> None:
    hall = Hall(tmp_path)
    hall.change["digest"] = "other"
    with pytest.raises(NotComparable, match="digest"):
        hall.run()


def test_sides_that_differ_in_nothing_or_too_much(tmp_path: Path) -> None:
    hall = Hall(tmp_path)
    with pytest.raises(UsageError, match=r"nothing differs .* calibrate"):
        check_sides(hall.side("baseline"), hall.side("candidate"))
    with pytest.raises(NotComparable, match="precision: bf16 and int8"):
        check_sides(hall.side("baseline"), hall.side("candidate", precision="int8"))
    longer = parse_profile("short.yaml", PROFILE.replace("prompt_tokens: 16", "prompt_tokens: 17"))
    with pytest.raises(NotComparable, match=r"workload\.prompt_tokens"):
        check_sides(hall.side("baseline"), hall.side("candidate", profile=longer))
    check_sides(
        hall.side("baseline"),
        Side("candidate", hall.profile, complete({}), Source(url="http://127.0.0.1:1")),
    )


def test_quality_is_gated_beside_speed(tmp_path: Path) -> None:
    before = [1.0, 1.2, 0.9, 1.1, 1.05, 0.95, 1.0, 1.1]
    worse = [one + 0.03 + 0.001 * (at % 2) for at, one in enumerate(before)]
    hall = Hall(tmp_path, jitter_sd=0.01, nlls={"baseline": before, "candidate": worse})
    result, _ = hall.run()
    assert result.claim is Claim.FAIL and result.exit_code == 1
    assert all(one.claim is Claim.PASS for one in result.metrics)
    assert result.quality is not None and result.quality.claim is Claim.FAIL
    assert result.quality.change.value == pytest.approx(math.expm1(0.0305), rel=1e-3)
    assert result.message == "fail: perplexity is 3.10% higher"
    same = Hall(tmp_path, jitter_sd=0.01, nlls={"baseline": before, "candidate": before})
    assert same.run()[0].claim is Claim.PASS


def test_why_quality_is_not_compared_is_said(tmp_path: Path) -> None:
    result, _ = Hall(tmp_path, jitter_sd=0.01, nlls={"baseline": [1.0, 1.1]}).run()
    assert result.quality is None
    assert "the candidate cannot score a text" in result.quality_note
    off, _ = Hall(tmp_path, jitter_sd=0.01).run(GatePlan(quality_windows=0))
    assert off.quality_note == "not asked for"
