"""Tune: the load test. One configuration under one load, hostile requests mixed in, and a verdict.

A trial like those of a sweep, measured once and for longer; its samples, figures and promises are
the same. What an interrupt leaves is kept and judged as far as it goes.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dstune.errors import DstuneError, ExitCode, TargetError, UsageError
from dstune.knobs import KnobValue, complete
from dstune.load.build import build_plan, closed_loop_requests
from dstune.load.plan import LoadPlan
from dstune.measure.anomalies import HANDLED_TARGET
from dstune.measure.record import (
    VOIDING,
    AnomalyKind,
    Claim,
    PlannedTrial,
    Run,
    Started,
    TrialRecord,
    Verdict,
)
from dstune.measure.run_folder import RunFolder
from dstune.profile.durations import parse_duration
from dstune.profile.load import dump_profile, restore_profile
from dstune.profile.model import LOADTEST_DURATION_S, ArrivalKind, Profile
from dstune.profile.offered import with_concurrency, with_duration, with_rate
from dstune.stats.metrics import is_ok, tpot_s, ttft_s
from dstune.target.target import LoadResult
from dstune.tune.bench import Bench, Job, Setting
from dstune.tune.recommendation import describe_load

TRIAL_ID = "loadtest"
SEED = "workload.seed"


@dataclass(frozen=True)
class Outcome:
    """How a load test ended."""

    run: Run
    folder: Path
    trial: TrialRecord | None

    @property
    def exit_code(self) -> int:
        """What the program exits with."""
        return self.run.verdict.exit_code if self.run.verdict else ExitCode.FAILED


def under_load(
    profile: Profile, *, duration: str | None, rate_per_s: float | None, users: int | None
) -> Profile:
    """The profile under another load; by default it lasts `LOADTEST_DURATION_S`.

    A trace is as long as it is, and a batch has no length in time. Raises `UsageError` or
    `ProfileError` for what makes no load.
    """
    if profile.driver != "http":
        raise UsageError("a load test goes over HTTP: leave driver away, or set it to http")
    if rate_per_s is not None and users is not None:
        raise UsageError("--rate is an open loop, --users a closed one: give one of them")
    if rate_per_s is not None:
        profile = with_rate(profile, rate_per_s)
    if users is not None:
        profile = with_concurrency(profile, users)
    if duration is not None:
        try:
            return with_duration(profile, parse_duration(duration))
        except ValueError as error:
            raise UsageError(f"--duration {error}") from None
    lasts_as_it_is = (ArrivalKind.ALL_AT_ONCE, ArrivalKind.TRACE)
    if profile.arrivals.duration is not None or profile.arrivals.kind in lasts_as_it_is:
        return profile
    return with_duration(profile, LOADTEST_DURATION_S)


def with_fresh_prompts(
    profile: Profile, overrides: Sequence[str]
) -> tuple[Profile, tuple[str, ...]]:
    """The profile with a seed of its own where it loads a URL, and the note that says so.

    The prefix cache of such a server cannot be relied on to be emptied, so it would answer the
    prompts of an earlier load from there. A seed among the overrides (`a.b=c`) stands.
    """
    if not profile.is_target_url or any(one.partition("=")[0].strip() == SEED for one in overrides):
        return profile, ()
    seed = secrets.randbelow(1 << 32)
    work = profile.workload.model_copy(update={"seed": seed})
    note = (
        f"prompts are new, since {profile.target} may have those of an earlier load in its prefix "
        f"cache: {SEED} is {seed}; --set {SEED}={seed} asks the same again"
    )
    return profile.model_copy(update={"workload": work}), (note,)


def configuration(profile: Profile, recommended: str | None, root: Path) -> dict[str, KnobValue]:
    """The knobs to test: the profile's own, or those that a sweep recommended.

    `recommended` names a run, or its recommended.yaml; raises `UsageError` where there is none.
    """
    if recommended is None:
        return complete(profile.knobs)
    if profile.is_target_url:
        raise UsageError(f"--recommended cannot be applied to {profile.target}: start it that way")
    return complete(RunFolder.recommended(recommended, root).knobs)


def begin(
    profile: Profile,
    knobs: dict[str, KnobValue],
    root: Path,
    argv: Sequence[str],
    environment: dict[str, Any],
    notes: tuple[str, ...] = (),
) -> RunFolder:
    """Makes the run folder of a load test of one configuration; nothing is started yet."""
    folder = RunFolder.create(root, "loadtest", profile.name)
    planned = PlannedTrial(trial_id=TRIAL_ID, origin="default", knobs=knobs, changed={})
    folder.write_run(
        Run(
            verb="loadtest",
            status="running",
            argv=list(argv),
            started_utc=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            wall_clock_zero_ns=time.time_ns() - time.monotonic_ns(),
            profile=dump_profile(profile),
            environment=environment,
            plan=(planned,),
            notes=notes,
        )
    )
    return folder


def loadtest(folder: RunFolder, setting: Setting) -> Outcome:
    """Carries out the load and judges it; an error is raised after the run is marked failed."""
    run = folder.read_run()
    profile = restore_profile(run.profile, f"{folder.path}/run.json")
    bench = Bench(profile, folder, setting, _plan_maker(profile))
    try:
        return _carry_out(folder, run, profile, bench, setting)
    except KeyboardInterrupt:
        message = "interrupted before anything was measured"
        return _end(folder, run, "interrupted", Verdict(exit_code=130, message=message))
    except Exception as error:
        code = error.exit_code if isinstance(error, DstuneError) else ExitCode.FAILED
        _end(folder, run, "failed", Verdict(exit_code=code, message=str(error)))
        raise
    finally:
        bench.close()


def _carry_out(
    folder: RunFolder, run: Run, profile: Profile, bench: Bench, setting: Setting
) -> Outcome:
    planned = run.plan[0]
    setting.observer.begins(run, folder.path, 0)
    for note in run.notes:
        setting.observer.notes(note)
    setting.observer.starts(
        Started(trial_id=TRIAL_ID, phase="loadtest", number=1, total=1, changed={},
                eta_s=None, best=None)
    )  # fmt: skip
    trial = bench.measure(Job(planned, TRIAL_ID, "loadtest", (0,)))
    trial = trial.model_copy(update={"load": describe_load(profile)})
    folder.append_trial(trial)
    setting.observer.finishes(trial)
    if bench.was_interrupted:
        message = f"what was measured is kept: {judge(trial).message}"
        verdict = Verdict(exit_code=ExitCode.INTERRUPTED, message=message)
        return _end(folder, run, "interrupted", verdict, trial)
    return _end(folder, run, "finished", judge(trial), trial)


def _plan_maker(profile: Profile) -> Any:
    """Plans with hostile requests; a closed loop of a given time gets enough to do."""

    def make(repetition: int, tokens: Sequence[int], warmup: LoadResult) -> LoadPlan:
        loaded = profile
        arrivals = profile.arrivals
        if arrivals.kind is ArrivalKind.CONCURRENCY and arrivals.duration is not None:
            assert arrivals.concurrency is not None
            num = closed_loop_requests(
                arrivals.concurrency, arrivals.duration, _fastest_s(profile, warmup)
            )
            work = profile.workload.model_copy(update={"num_requests": num})
            loaded = profile.model_copy(update={"workload": work})
        return build_plan(loaded, repetition, tokens, with_anomalies=True)

    return make


def _fastest_s(profile: Profile, warmup: LoadResult) -> float:
    """Seconds of a request of typical length at twice the pace of the warm-up's fastest.

    Raises `TargetError` when none of the warm-up ended ok: then there is no pace.
    """
    if not any(map(is_ok, warmup.samples)):
        ends = Counter(f"{one.status.value}: {one.error.value}" for one in warmup.samples)
        said = ", ".join(f"{num} {end}" for end, num in ends.most_common())
        raise TargetError(f"no warm-up request ended ok ({said}), so nothing was measured")
    first_s = min((value for one in warmup.samples if (value := ttft_s(one))), default=1e-3)
    each_s = min((value for one in warmup.samples if (value := tpot_s(one))), default=1e-4)
    return (first_s + each_s * profile.workload.output_tokens.typical) / 2


def _unhandled(kinds: Sequence[AnomalyKind]) -> str:
    """What is wrong where fewer hostile requests were handled than must be; else nothing."""
    num = sum(one.num for one in kinds)
    if sum(one.num_handled for one in kinds) >= HANDLED_TARGET * num:
        return ""
    said = []
    if unexpected := num - sum(one.num_as_expected for one in kinds):
        said.append(f"{unexpected} of {num} hostile requests did not end as they should")
    if broken := [one.kind for one in kinds if not one.is_slo_met_beside]:
        said.append(f"normal requests beside {', '.join(broken)} missed the SLO")
    return f"{'; '.join(said)}; {HANDLED_TARGET:.1%} have to be handled"


def judge(trial: TrialRecord) -> Verdict:
    """Pass, fail or inconclusive, in one line that says why."""
    if not trial.is_measured:
        return Verdict(exit_code=ExitCode.FAILED, message=trial.reason)
    doubts = [one for one in trial.remarks if one.code in VOIDING]
    if doubts:
        said = "; ".join(f"{one.code}: {one.message}" for one in doubts)
        message = f"inconclusive: the measurement cannot be trusted ({said})"
        return Verdict(exit_code=ExitCode.INCONCLUSIVE, message=message)
    missed = [one.key for one in trial.slo if one.claim is Claim.FAIL]
    if missed:
        return Verdict(exit_code=ExitCode.FAIL, message=f"fail: {', '.join(missed)} missed")
    unhandled = _unhandled(trial.anomalies)
    if unhandled:
        return Verdict(exit_code=ExitCode.FAIL, message=f"fail: {unhandled}")
    open_claims = [one for one in trial.slo if one.claim is Claim.INCONCLUSIVE]
    if open_claims:
        said = "; ".join(
            f"{one.key}: {one.num_over} of {one.num_samples} over the limit"
            + (f", {one.num_needed} needed to claim it" if one.num_needed else "")
            for one in open_claims
        )
        message = f"inconclusive: {said}; a longer load decides"
        return Verdict(exit_code=ExitCode.INCONCLUSIVE, message=message)
    return Verdict(exit_code=ExitCode.PASS, message="pass: every promise is kept (95% confidence)")


def _end(
    folder: RunFolder, run: Run, status: Any, verdict: Verdict, trial: TrialRecord | None = None
) -> Outcome:
    ended = run.model_copy(update={"status": status, "verdict": verdict})
    folder.write_run(ended)
    return Outcome(ended, folder.path, trial)
