"""Gate: one side under load, pair by pair, each pair in processes of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime

from dstune.gate.plan import GateSetting
from dstune.gate.sessions import run_figures, workload_of
from dstune.gate.sides import Side, SideName
from dstune.knobs import KnobValue
from dstune.measure.comparison import MetricChange, QualityScores, RunFigures, Subject
from dstune.measure.record import VOIDING, PlannedTrial, TrialRecord
from dstune.measure.run_folder import RunFolder
from dstune.profile.model import Profile
from dstune.target.command import START_TIMEOUT_S
from dstune.target.target import Target
from dstune.tune.bench import Bench, Job, Setting


class Contestant:
    """A side with the bench that measures it."""

    def __init__(self, side: Side, folder: RunFolder, setting: GateSetting) -> None:
        self.side = side
        self._folder = folder
        self._setting = setting
        self._has_started = False
        self.target: Target | None = None
        self.effective: Mapping[str, KnobValue] = {}

        def open_target(_profile: Profile) -> Target:
            self.target = setting.open_side(side, False)
            return self.target

        bench_setting = Setting(open_target, setting.observer, setting.corpus, setting.clock_ns,
                                setting.read_cpu)  # fmt: skip
        self._bench = Bench(side.profile, folder, bench_setting)
        self._planned = PlannedTrial(
            trial_id=side.name, origin="default", knobs=side.knobs, changed={}
        )

    def start(self) -> None:
        """Starts a process and warms it up."""
        if self.side.source.server is not None and not self._has_started:
            self._setting.observer.notes(
                f"starting the {self.side.name}: {self.side.source.server.line} "
                f"(at most {START_TIMEOUT_S:g} s; its log is {self._folder.log_path})"
            )
        self._has_started = True
        self._bench.prepare(self._planned)

    def load(self, trial_id: str, repetition: int) -> TrialRecord:
        """One load, its samples and its record on disk."""
        trial = self._bench.measure(Job(self._planned, trial_id, "gate", (repetition,)))
        self._folder.append_trial(trial)
        self.effective = trial.effective
        return trial

    def stop(self) -> None:
        """Ends the process."""
        self.target = None
        self._bench.close()


@dataclass
class Measured:
    """What a gate has so far."""

    baseline: list[RunFigures] = field(default_factory=list)
    candidate: list[RunFigures] = field(default_factory=list)
    num_repeated: int = 0
    changes: tuple[MetricChange, ...] = ()  # of the last look
    first: Pair | None = None
    quality: dict[str, QualityScores | str] = field(default_factory=dict)  # or why there is none
    end: str = ""  # why it ended before a verdict
    was_interrupted: bool = False


@dataclass(frozen=True)
class Pair:
    """What both sides did in one pair."""

    baseline: tuple[TrialRecord, ...]
    candidate: tuple[TrialRecord, ...]

    @property
    def doubts(self) -> str:
        """Why it cannot be trusted; empty where it can."""
        found = {one.trial_id: remark.message for one in (*self.baseline, *self.candidate)
                 for remark in one.remarks if remark.code in VOIDING}  # fmt: skip
        if not found:
            return ""
        return f"{' and '.join(found)}: {next(iter(found.values()))}"


def start_both(contest: Sequence[Contestant]) -> None:
    """Starts all at once, which takes no longer than the slowest."""
    with ThreadPoolExecutor(len(contest)) as pool:
        for started in [pool.submit(one.start) for one in contest]:
            started.result()


def run_turns(
    turn: Sequence[Contestant], prefix: str, repetitions: Sequence[int]
) -> dict[SideName, tuple[TrialRecord, ...]]:
    """Those that are up, under the same loads in turn: A B, B A, A B, ...

    Turns alternate so that a drift of the machine within the pair meets both sides alike.
    """
    found: dict[SideName, list[TrialRecord]] = {one.side.name: [] for one in turn}
    for index, repetition in enumerate(repetitions):
        suffix = f"-{index + 1}" if len(repetitions) > 1 else ""
        for one in turn if index % 2 == 0 else reversed(turn):
            name = one.side.name
            found[name].append(one.load(f"{prefix}-{name}{suffix}", repetition))
    return {name: tuple(trials) for name, trials in found.items()}


def run_of(
    folder: RunFolder, name: str, trials: Sequence[TrialRecord], profile: Profile
) -> RunFigures:
    """One run's figures: those of its loads together."""
    started_ns = folder.read_run().wall_clock_zero_ns + trials[0].repetitions[0].started_ns
    return run_figures(
        name,
        [folder.samples(trial.trial_id) for trial in trials],
        profile,
        datetime.fromtimestamp(started_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        [remark for trial in trials for remark in trial.remarks],
    )


def subject_of(side: Side, trial: TrialRecord, setting: GateSetting) -> Subject:
    """What a side turned out to be, once it was measured."""
    effective = trial.effective
    environment = dict(setting.environment)
    if side.source.revision is not None and side.source.is_embedded:
        environment["git_revision"] = side.source.revision
    elif not side.source.is_embedded:  # another program's, whose version is its own affair
        environment["git_revision"] = None
    return Subject(
        tool="dstune",
        model=str(trial.model.get("name", side.profile.model)),
        model_digest=_text(trial.model.get("digest")),
        precision=_text(effective.get("precision")),
        kv_cache_dtype=_text(effective.get("kv_cache_dtype")),
        workload=workload_of(side.profile, has_hostile=False),
        knobs=side.knobs,
        environment=environment,
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)
