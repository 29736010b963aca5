"""Tune: confirmed samples become recommended.yaml: what to run, and the evidence for it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from dstune.errors import TargetError
from dstune.measure.record import (
    VOIDING,
    Claim,
    Estimate,
    Figures,
    Measured,
    Recommendation,
    Remark,
    RemarkCode,
    Repetition,
    Run,
    RunnerUp,
    SamplesRef,
    SloCheck,
    TrialRecord,
)
from dstune.measure.run_folder import RECOMMENDED, RunFolder
from dstune.profile.model import ArrivalKind, Objective, Profile
from dstune.stats.figures import check_slo, compare, figures_of
from dstune.stats.trust import busy_remarks
from dstune.tune.bench import limits_of, loop_of
from dstune.tune.confirmation import confirmation_id
from dstune.tune.ranking import MAIN_FIGURE, meets, ranked


@dataclass(frozen=True)
class Confirmed:
    """A finalist with its confirmed figures, and each round's for pairing."""

    trial: TrialRecord  # of the search
    measured: Measured
    repetitions: tuple[Repetition, ...]  # one per round

    @property
    def rounds(self) -> tuple[Figures, ...]:
        """The figures of each round."""
        return tuple(one.figures for one in self.repetitions)

    @property
    def figures(self) -> Figures:
        """The pooled figures."""
        return self.measured.figures

    @property
    def slo(self) -> tuple[SloCheck, ...]:
        """The promises beside the pooled figures."""
        return self.measured.slo


def confirmed(
    run: Run, trials: Sequence[TrialRecord], profile: Profile, folder: RunFolder
) -> list[Confirmed]:
    """Every finalist that ran in each usable round, best first, from the samples on disk.

    Rounds pair the finalists, so a round counts for all of them or for none: for none where one
    of them could not be trusted. A finalist that no round trusts is set aside itself.
    """
    by_id = {one.trial_id: one for one in trials}
    rounds = range(finished_rounds(run, trials))
    records = {
        trial_id: [by_id[confirmation_id(trial_id, index)] for index in rounds]
        for trial_id in run.finalists
    }
    kept = {
        trial_id: of_rounds
        for trial_id, of_rounds in records.items()
        if of_rounds and all(one.is_measured for one in of_rounds)
        and any(one.is_trusted for one in of_rounds)
    }  # fmt: skip
    usable = [at for at in rounds if all(each[at].is_trusted for each in kept.values())]
    if not usable:
        return []
    found = [
        _confirm(by_id[trial_id], [of_rounds[at] for at in usable], profile, folder)
        for trial_id, of_rounds in kept.items()
    ]
    return ranked(found, profile.aim)


def finished_rounds(run: Run, trials: Sequence[TrialRecord]) -> int:
    """Rounds in which every finalist was tried."""
    done = {one.trial_id for one in trials}
    num = 0
    while run.finalists and all(confirmation_id(one, num) in done for one in run.finalists):
        num += 1
    return num


def _confirm(
    trial: TrialRecord, records: Sequence[TrialRecord], profile: Profile, folder: RunFolder
) -> Confirmed:
    by_round = [folder.samples(one.trial_id) for one in records]
    limits = limits_of(profile)
    slo = check_slo(by_round, limits, profile.slo.success_rate)
    claims = {check.claim for check in slo}
    order = (Claim.FAIL, Claim.INCONCLUSIVE, Claim.PASS)
    measured = Measured(
        trial_id=trial.trial_id,
        changed=trial.changed,
        figures=figures_of(by_round, loop_of(profile), limits),
        slo=slo,
        claim=next(one for one in order if one in claims),
        samples=tuple(
            SamplesRef(trial_id=one.trial_id, repetition=repetition.repetition)
            for one in records
            for repetition in one.repetitions
        ),
    )
    return Confirmed(trial, measured, tuple(one for each in records for one in each.repetitions))


def recommend(
    run: Run, finalists: Sequence[Confirmed], profile: Profile, folder: RunFolder
) -> Recommendation | None:
    """The best confirmed configuration with its evidence; None when none meets the SLO."""
    winner = finalists[0] if finalists else None
    if winner is None or not meets(winner):
        return None
    default = next((one for one in finalists if one.trial.origin == "default"), None)
    runner_up = finalists[1] if len(finalists) > 1 else None
    behind = None
    if runner_up is not None:
        behind = RunnerUp(
            knobs=runner_up.trial.knobs,
            measured=runner_up.measured,
            against_recommended=compare(runner_up.rounds, winner.rounds),
        )
    return Recommendation(
        profile=profile.name,
        scenario=profile.scenario,
        objective=profile.aim,
        model=profile.model,
        target=profile.target,
        load=describe_load(profile),
        knobs=winner.trial.knobs,
        changed=winner.trial.changed,
        recommended=winner.measured,
        default=default.measured if default else None,
        gain=compare(winner.rounds, default.rounds) if default else {},
        runner_up=behind,
        remarks=(
            *_remarks(run, winner, default, behind, profile),
            *_failed(folder.trials()),
            *_set_aside(folder.trials()),
        ),
        environment={**run.environment, "model": winner.trial.model},
        run=folder.path.name,
        rerun=shlex.join(["dstune", *run.argv]),
    )


def describe_load(profile: Profile) -> str:
    """The load that figures hold for, in one line."""
    work, arrivals = profile.workload, profile.arrivals
    is_timed = arrivals.kind is ArrivalKind.CONCURRENCY and arrivals.duration is not None
    num = f"{arrivals.duration:g} s with" if is_timed else f"{work.num_requests} requests"
    turns = f" in sessions of up to {work.turns.longest} turns" if work.has_sessions else ""
    return (
        f"{num} {arrivals.describe()}{turns}, prompts up to {work.prompt_tokens.longest} tokens, "
        f"outputs up to {work.output_tokens.longest}"
    )


def _failed(trials: Sequence[TrialRecord]) -> tuple[Remark, ...]:
    """Candidates that were lost because the target failed, not because they were worse."""
    lost = [f"{one.trial_id} ({one.reason})" for one in trials if one.error == TargetError.__name__]
    message = f"not measured, for the target failed: {'; '.join(lost)}"
    return (Remark(code=RemarkCode.FAILED_TRIALS, message=message),) if lost else ()


def _set_aside(trials: Sequence[TrialRecord]) -> tuple[Remark, ...]:
    """Trials that were measured twice and could not be trusted, so that nothing ranks them."""
    doubted = [
        f"{one.trial_id} ({', '.join(sorted(r.code for r in one.remarks if r.code in VOIDING))})"
        for one in trials
        if one.is_measured and not one.is_trusted
    ]
    message = f"set aside, not to be trusted when measured twice: {'; '.join(doubted)}"
    return (Remark(code=RemarkCode.SET_ASIDE, message=message),) if doubted else ()


def _remarks(
    run: Run,
    winner: Confirmed,
    default: Confirmed | None,
    behind: RunnerUp | None,
    profile: Profile,
) -> tuple[Remark, ...]:
    """Every reason to trust the recommendation less."""
    compared = [*winner.repetitions, *(default.repetitions if default else ())]
    found = list(busy_remarks(compared))
    rounds = len(winner.rounds)
    if rounds < run.confirmation_rounds:
        message = f"the budget ended after {rounds} of {run.confirmation_rounds} rounds"
        found.append(Remark(code=RemarkCode.CONFIRMATION_CUT_SHORT, message=message))
    if rounds < 3:
        message = f"{rounds} confirmation rounds: intervals are wide; give budget.wall more time"
        found.append(Remark(code=RemarkCode.FEW_REPETITIONS, message=message))
    if default is None:
        message = "the default configuration was not measured: no gain is claimed"
        found.append(Remark(code=RemarkCode.DEFAULT_NOT_MEASURED, message=message))
    unclaimed = [one for one in winner.measured.slo if one.claim is Claim.INCONCLUSIVE]
    if unclaimed:
        needed = [f"{one.key} {one.num_samples} of {one.num_needed or 'no number'} needed, "
                  f"{one.num_over} over" for one in unclaimed]  # fmt: skip
        message = f"met as measured, not claimed at 95%: {'; '.join(needed)}"
        found.append(Remark(code=RemarkCode.TOO_FEW_SAMPLES, message=message))
    lost = [one for one in winner.measured.slo if one.key == "success_rate" and one.num_over]
    for check in lost:
        message = f"{check.num_over} of {check.num_samples} requests did not end ok"
        found.append(Remark(code=RemarkCode.FAILED_REQUESTS, message=message))
    if behind is not None and not _is_separated(behind, profile):
        message = (
            f"{behind.measured.trial_id} is not separated from the recommended "
            f"{winner.measured.trial_id} in what decides: either may be the better one"
        )
        found.append(Remark(code=RemarkCode.NOT_SEPARATED, message=message))
    return tuple(found)


def _is_separated(behind: RunnerUp, profile: Profile) -> bool:
    """Whether some figure that decides between the two differs beyond its interval."""
    figures = [MAIN_FIGURE[profile.aim]]
    if profile.aim is Objective.GOODPUT_LATENCY:
        figures += [limit.key for limit in profile.slo.limits] or ["ttft_p99_ms"]
    if profile.aim is Objective.GOODPUT_THROUGHPUT:
        figures.append("output_tokens_per_s")
    return any(
        not _covers_one(behind.against_recommended[name])
        for name in figures
        if name in behind.against_recommended
    )


def _covers_one(ratio: Estimate) -> bool:
    if ratio.low is None or ratio.high is None:
        return True
    return ratio.low <= 1 <= ratio.high


def write_recommendation(folder: RunFolder, recommendation: Recommendation) -> None:
    """Writes recommended.yaml; figures keep 6 significant digits."""
    plain = _readable(recommendation.model_dump(mode="json"))
    header = (
        f"# Recommended for {recommendation.profile}: {recommendation.load}.\n"
        f"# Figures are of the confirmation; intervals are 95%. gain and against_recommended are\n"
        f"# ratios. The samples behind a figure: trials/<trial_id>/requests.parquet in this run.\n"
    )
    body = yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    folder.write_text(RECOMMENDED, header + body)


class _Flow(dict[str, Any]):
    """A mapping that is written on one line: an estimate, a reference."""


class _Dumper(yaml.SafeDumper):
    """Writes `_Flow` mappings on one line."""


_Dumper.add_representer(
    _Flow,
    lambda dumper, data: dumper.represent_mapping("tag:yaml.org,2002:map", data, flow_style=True),
)


def _readable(data: Any) -> Any:
    if isinstance(data, float):
        return float(f"{data:.6g}")
    if isinstance(data, Mapping):
        plain = {key: _readable(value) for key, value in data.items()}
        is_small = set(plain) in ({"value", "low", "high"}, {"trial_id", "repetition"})
        return _Flow(plain) if is_small else plain
    return [_readable(one) for one in data] if isinstance(data, list) else data
