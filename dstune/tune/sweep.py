"""Tune: the sweep. A profile becomes trials, trials become load on a target, load becomes raw
samples, samples become figures, figures become a recommendation.

A fresh run and a resumed one are the same: what run.json plans and trials.jsonl lacks is done.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dstune.errors import DstuneError, ExitCode, NotComparable, TargetError
from dstune.measure.fingerprint import differences
from dstune.measure.record import (
    VOIDING,
    Claim,
    PlannedTrial,
    Recommendation,
    RemarkCode,
    Run,
    Started,
    TrialRecord,
    Verdict,
)
from dstune.measure.run_folder import RunFolder
from dstune.profile.load import dump_profile, restore_profile
from dstune.profile.model import Profile
from dstune.tune.bench import Bench, Job, Setting
from dstune.tune.confirmation import choose_finalists, fitting_size, reserve_s, round_jobs
from dstune.tune.pace import Pace
from dstune.tune.ranking import meets, ranked, worst_ratio
from dstune.tune.recommendation import Confirmed, confirmed, recommend, write_recommendation
from dstune.tune.space import draw, plan_space

MOST_DEATHS = 3
"""Targets that may die one after the other before the sweep gives up."""


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended."""

    run: Run
    folder: Path
    trials: tuple[TrialRecord, ...]
    recommendation: Recommendation | None

    @property
    def exit_code(self) -> int:
        """What the program exits with."""
        return self.run.verdict.exit_code if self.run.verdict else ExitCode.FAILED


def begin(
    profile: Profile, root: Path, argv: Sequence[str], environment: dict[str, Any]
) -> RunFolder:
    """Plans a sweep and makes its run folder; nothing is started yet."""
    space = plan_space(profile)
    folder = RunFolder.create(root, "sweep", profile.name)
    folder.write_run(
        Run(
            verb="sweep",
            status="running",
            argv=list(argv),
            started_utc=_now(),
            wall_clock_zero_ns=time.time_ns() - time.monotonic_ns(),
            profile=dump_profile(profile),
            environment=environment,
            plan=space.trials,
            skipped=space.skipped,
            notes=space.notes,
        )
    )
    return folder


def resume(folder: RunFolder, environment: dict[str, Any]) -> None:
    """Makes an earlier run ready to go on; raises `NotComparable` on another machine."""
    run = folder.read_run()
    found = differences(run.environment, environment)
    if found:
        raise NotComparable(f"{folder.path} cannot go on here: {'; '.join(found)}")
    folder.clean()
    update = {"status": "running", "verdict": None, "resumed_utc": (*run.resumed_utc, _now()),
              "not_tried": ()}  # fmt: skip
    folder.write_run(run.model_copy(update=update))


def sweep(folder: RunFolder, setting: Setting) -> Outcome:
    """Carries out what a run folder plans and does not hold yet, and recommends.

    An interrupt ends it with status interrupted and what was measured; any other error is
    raised after the run is marked failed.
    """
    sweeping = _Sweep(folder, setting)
    try:
        sweeping.search()
        sweeping.confirm()
        return sweeping.conclude()
    except KeyboardInterrupt:
        return sweeping.interrupted()
    except Exception as error:
        sweeping.failed(error)
        raise
    finally:
        sweeping.bench.close()


class _Sweep:
    """One sweep in progress: what is planned, what is done, what time is left."""

    def __init__(self, folder: RunFolder, setting: Setting) -> None:
        self.folder = folder
        self.setting = setting
        self.run = folder.read_run()
        self.profile = restore_profile(self.run.profile, f"{folder.path}/run.json")
        self.trials = {one.trial_id: one for one in folder.trials()}
        self.bench = Bench(self.profile, folder, setting)
        self.pace = Pace()
        for one in self.trials.values():
            self.pace.add(one)
        self.used_before_s = sum(one.elapsed_s for one in self.trials.values())
        self.started_ns = setting.clock_ns()
        self.deaths = 0

    def search(self) -> None:
        """Measures every planned trial that has no record and for which there is time."""
        self.setting.observer.begins(self.run, self.folder.path, len(self.trials))
        for note in self.run.notes:
            self.setting.observer.notes(note)
        if self.run.finalists:
            return  # resumed in the middle of the confirmation
        self._update(not_tried=())
        queue = [one for one in self.run.plan if one.trial_id not in self.trials]
        spare: list[PlannedTrial] = []
        while queue or spare:
            if not queue:  # faster than it looked: go on with what was put aside
                queue, spare = spare, []
            fitting = self._how_many_fit(queue)
            if fitting == 0:
                break
            if fitting < len(queue):
                kept = draw(queue, fitting, self.profile.workload.seed)
                spare += [one for one in queue if one not in kept]
                queue = kept
            self._search_next(queue)
        if queue or spare:
            self._leave_out([*queue, *spare])

    def confirm(self) -> None:
        """Measures the finalists and the default again, round by round."""
        if not self.run.finalists:
            size = fitting_size(self.profile, self.pace, self._remaining_s())
            chosen = choose_finalists(list(self.trials.values()), self.profile, size.num_finalists)
            self._update(finalists=tuple(chosen), confirmation_rounds=size.rounds)
        num = len(self.run.finalists)
        total = num * self.run.confirmation_rounds
        for round_index in range(self.run.confirmation_rounds if num else 0):
            if round_index and not self._has_time(self.pace.confirmation_s(num, 1)):
                return
            for index, job in enumerate(round_jobs(self.run, self.profile, round_index)):
                done = round_index * num + index
                eta_s = (total - done) * self.pace.confirmation_s(1, 1)
                if job.trial_id not in self.trials:
                    self._try(job, done + 1, total, eta_s)

    def conclude(self) -> Outcome:
        """Recommends by the confirmed samples and says how the sweep ended."""
        trials = list(self.trials.values())
        finalists = confirmed(self.run, trials, self.profile, self.folder)
        recommendation = recommend(self.run, finalists, self.profile, self.folder)
        if recommendation is not None:
            write_recommendation(self.folder, recommendation)
        verdict = _verdict(trials, finalists, recommendation, self.profile)
        self._update(status="finished", verdict=verdict)
        return self._outcome(recommendation)

    def interrupted(self) -> Outcome:
        """Marks the run interrupted; everything measured is on disk already."""
        message = f"go on with: dstune sweep --resume {self.folder.path}"
        verdict = Verdict(exit_code=ExitCode.INTERRUPTED, message=message)
        self._update(status="interrupted", verdict=verdict)
        return self._outcome(None)

    def failed(self, error: Exception) -> None:
        """Marks the run failed with the error's own line."""
        code = error.exit_code if isinstance(error, DstuneError) else ExitCode.FAILED
        self._update(status="failed", verdict=Verdict(exit_code=code, message=str(error)))

    def _search_next(self, queue: list[PlannedTrial]) -> None:
        """Takes the first trial out of the queue and measures it."""
        repetitions = tuple(range(self.profile.budget.repetitions))
        total = len(self.trials) + len(queue)
        eta_s = self._search_eta_s(queue)
        planned = queue.pop(0)
        job = Job(planned, planned.trial_id, "search", repetitions)
        self._try(job, total - len(queue), total, eta_s)

    def _how_many_fit(self, queue: Sequence[PlannedTrial]) -> int:
        """How many of the trials there is time for, once the confirmation's is set aside.

        Until something meets the SLO there is nothing to confirm, so hardly any is.
        """
        remaining_s = self._remaining_s()
        if remaining_s is None or not self.pace.is_known:
            return len(queue)
        wall_s = self.profile.budget.wall
        is_met = self._best() is not None
        reserved_s = reserve_s(self.pace, wall_s) if is_met else self.pace.confirmation_s(2, 1)
        each_s = self.pace.trials_s(queue, self.profile.budget.repetitions) / len(queue)
        if each_s <= 0:
            return len(queue)
        return min(len(queue), max(int((remaining_s - reserved_s) / each_s), 0))

    def _try(self, job: Job, number: int, total: int, eta_s: float | None) -> None:
        """Measures one trial and puts it on disk."""
        self.setting.observer.starts(
            Started(
                trial_id=job.trial_id,
                phase=job.phase,
                number=number,
                total=total,
                changed=job.planned.changed,
                eta_s=eta_s if self.pace.is_known else None,
                best=self._best(),
            )
        )
        trial = self._trustworthy(job)
        self.folder.append_trial(trial)
        self.trials[trial.trial_id] = trial
        self.pace.add(trial)
        self.setting.observer.finishes(trial)
        if trial.origin == "default" and not trial.is_measured:
            self.setting.observer.notes(f"the default configuration cannot run: {trial.reason}")
        self.deaths = self.deaths + 1 if trial.error == TargetError.__name__ else 0
        if self.deaths >= MOST_DEATHS:
            raise TargetError(
                f"the target died {self.deaths} times in a row, last: {trial.reason}; "
                f"its log is {self.folder.log_path}"
            )

    def _trustworthy(self, job: Job) -> TrialRecord:
        """Measures a trial, once more when it cannot be trusted; the second one stands."""
        trial = self.bench.measure(job)
        if not trial.is_measured or trial.is_trusted:
            return trial
        self.setting.observer.notes(f"{job.trial_id} is measured again: {_doubts(trial)}")
        again = self.bench.measure(job)
        both = {"elapsed_s": trial.elapsed_s + again.elapsed_s,
                "start_s": trial.start_s + again.start_s,
                "restart": trial.restart, "restart_s": trial.restart_s}  # fmt: skip
        again = again.model_copy(update=both)
        if again.is_measured and not again.is_trusted:
            self.setting.observer.notes(f"{job.trial_id} is set aside: {_doubts(again)}")
        return again

    def _best(self) -> TrialRecord | None:
        trusted = [one for one in self.trials.values()
                   if one.phase == "search" and one.is_trusted]  # fmt: skip
        best = ranked(trusted, self.profile.aim)
        return best[0] if best and meets(best[0]) else None

    def _leave_out(self, left: Sequence[PlannedTrial]) -> None:
        self._update(not_tried=tuple(sorted(one.trial_id for one in left)))
        self.setting.observer.notes(
            f"budget: {len(left)} of {len(self.run.plan)} trials are not tried, "
            "so that time is left to confirm the best"
        )

    def _remaining_s(self) -> float | None:
        if self.profile.budget.wall is None:
            return None
        spent_s = (self.setting.clock_ns() - self.started_ns) / 1e9 + self.used_before_s
        return self.profile.budget.wall - spent_s

    def _has_time(self, cost_s: float) -> bool:
        remaining_s = self._remaining_s()
        return remaining_s is None or cost_s <= remaining_s

    def _search_eta_s(self, left: Sequence[PlannedTrial]) -> float:
        """Seconds until the end: the rest of the search and the confirmation, within the budget."""
        remaining_s = self._remaining_s()
        search_s = self.pace.trials_s(left, self.profile.budget.repetitions)
        after_s = None if remaining_s is None else remaining_s - search_s
        size = fitting_size(self.profile, self.pace, after_s)
        eta_s = search_s + self.pace.confirmation_s(size.num_finalists + 1, size.rounds)
        return eta_s if remaining_s is None else min(eta_s, max(remaining_s, 0.0))

    def _update(self, **changes: Any) -> None:
        self.run = self.run.model_copy(update=changes)
        self.folder.write_run(self.run)

    def _outcome(self, recommendation: Recommendation | None) -> Outcome:
        return Outcome(self.run, self.folder.path, tuple(self.trials.values()), recommendation)


def _verdict(
    trials: Sequence[TrialRecord],
    finalists: Sequence[Confirmed],
    recommendation: Recommendation | None,
    profile: Profile,
) -> Verdict:
    """How it ended, in one line: what is recommended, or how near the nearest came."""
    if recommendation is not None:
        chosen = recommendation.recommended.trial_id
        message = f"{chosen} is recommended; {_claimed(recommendation.recommended.claim)}"
        return Verdict(exit_code=ExitCode.PASS, message=message, recommended=chosen)
    search = [one for one in trials if one.phase == "search"]
    measured = [one for one in search if one.is_measured]
    trusted = [one for one in measured if one.is_trusted]
    doubted = [one for one in trials if one.is_measured and not one.is_trusted]
    if doubted and not trusted:
        message = f"no trial can be trusted; the last: {_doubts(doubted[-1])}"
        return Verdict(exit_code=ExitCode.INCONCLUSIVE, message=message)
    if doubted and not finalists and any(one.phase == "confirm" for one in trials):
        message = f"no round of the confirmation can be trusted; the last: {_doubts(doubted[-1])}"
        return Verdict(exit_code=ExitCode.INCONCLUSIVE, message=message)
    if not measured:
        reasons = "; ".join(dict.fromkeys(one.reason for one in trials)) or "no trial was run"
        died = any(one.error == TargetError.__name__ for one in trials)
        code = ExitCode.FAILED if died else ExitCode.USAGE
        return Verdict(exit_code=code, message=f"no configuration can run: {reasons}")
    if finalists:
        nearest = min(finalists, key=worst_ratio)
        named, slo = nearest.trial.trial_id, nearest.measured.slo
        said = "what met the SLO in the search missed it when it was measured again"
    else:
        closest = min(trusted, key=worst_ratio)
        named, slo = closest.trial_id, closest.slo
        said = f"none of {len(trusted)} configurations meets the SLO"
    missed = [f"{one.key} {one.measured:.4g} for {one.limit:g}" if one.measured is not None
              else f"{one.key} without a value" for one in slo if not one.is_met]  # fmt: skip
    message = f"{said}; the nearest is {named} ({', '.join(missed)})"
    # A miss on a busy host is the host's as much as the configuration's
    busy = next(
        (r.message for t in trials for r in t.remarks if r.code is RemarkCode.BUSY_HOST), ""
    )
    message += f"; {busy}" if busy else ""
    return Verdict(exit_code=ExitCode.FAIL, message=message, nearest=named)


def _doubts(trial: TrialRecord) -> str:
    """Why a trial cannot be trusted."""
    return "; ".join(f"{one.code}: {one.message}" for one in trial.remarks if one.code in VOIDING)


def _claimed(claim: Claim) -> str:
    """What is said about the SLO of a configuration that met it as measured."""
    return {
        Claim.PASS: "it keeps its SLO (95% confidence)",
        Claim.INCONCLUSIVE: "it met its SLO as measured, with too few samples to claim it at 95%",
        Claim.FAIL: "it met its SLO as measured, but a promise fails at 95% confidence",
    }[claim]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
