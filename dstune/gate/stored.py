"""Gate: a candidate beside what was measured earlier, without measuring that again.

There is no pairing, so a machine that was faster then looks like a slowdown now: the verdict is
advisory. The same verdict by pairs is given to results of other tools where they were interleaved.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from dstune.errors import NotComparable, UsageError
from dstune.gate.comparable import check_comparable, check_runs, check_trusted
from dstune.gate.contest import Contestant, run_of, subject_of
from dstune.gate.plan import GatePlan, GateSetting
from dstune.gate.quality import score_side
from dstune.gate.sides import Side
from dstune.gate.verdict import exit_code, say, worst
from dstune.measure.comparison import (
    GateResult,
    MetricChange,
    QualityScores,
    RunFigures,
    Session,
)
from dstune.measure.record import Claim
from dstune.measure.run_folder import RunFolder
from dstune.stats.paired import LOOKS, gated_for, judge, overall
from dstune.stats.quality import quality_change
from dstune.stats.stored import judge_stored

LEAST_LOADS = 3


def measure_session(folder: RunFolder, side: Side, plan: GatePlan, setting: GateSetting) -> Session:
    """A sitting of the candidate: its profile's repetitions, three at least, in one process."""
    one = Contestant(side, folder, setting)
    num = max(side.profile.budget.repetitions, LEAST_LOADS)
    runs: list[RunFigures] = []
    try:
        one.start()
        for index in range(num):
            setting.observer.pair(index + 1, num, None)
            trial = one.load(f"s{index + 1:02d}-candidate", index)
            runs.append(run_of(folder, trial.trial_id, [trial], side.profile))
        scored = score_side(one, plan.quality_windows, setting) if plan.quality_windows else ""
        if isinstance(scored, str) and scored:
            setting.observer.notes(f"quality is not compared: {scored}")
        subject = subject_of(side, trial, setting)
    finally:
        one.stop()
    return Session(name=folder.path.name, source=str(folder.path), started_utc=runs[0].started_utc,
                   subject=subject, runs=tuple(runs),
                   quality=scored if isinstance(scored, QualityScores) else None)  # fmt: skip


def check_earlier(earlier: Sequence[Session]) -> None:
    """Raises where earlier sessions cannot stand for anything, before anything is measured.

    `UsageError` for one that is named twice or is another one's copy: it would make the spread
    between sessions look smaller than it is.
    """
    for one in earlier:
        check_runs(one)
        check_trusted(one)
    for at, one in enumerate(earlier):
        for other in earlier[:at]:
            if [run.figures for run in one.runs] == [run.figures for run in other.runs]:
                raise UsageError(
                    f"{one.source} holds the very figures of {other.source}: name every session "
                    "once, and no copies"
                )


def against_stored(earlier: Sequence[Session], candidate: Session, plan: GatePlan) -> GateResult:
    """The advisory verdict by a prediction interval over the earlier sessions."""
    notes: list[str] = []
    check_earlier(earlier)
    check_runs(candidate)
    check_trusted(candidate)
    for one in earlier:
        notes += check_comparable(one.subject, candidate.subject)
    runs = [run for session in (*earlier, candidate) for run in session.runs]
    changes = judge_stored(earlier, candidate, gated_for(plan.metrics, runs), plan.thresholds)
    return _result("stored", earlier, candidate, changes, plan, notes)


def against_results(baseline: Session, candidate: Session, plan: GatePlan) -> GateResult:
    """The paired verdict over results that were measured in turns, as other tools leave them.

    Raises `NotComparable` where they were not: a drift between two blocks of runs looks like a
    slowdown.
    """
    notes = list(check_comparable(baseline.subject, candidate.subject))
    if [run.figures for run in baseline.runs] == [run.figures for run in candidate.runs]:
        raise UsageError(
            f"{baseline.source} and {candidate.source} hold the very same figures: name the "
            "results of two measurements"
        )
    for one in (baseline, candidate):
        check_runs(one)
    notes += _check_interleaved(baseline.runs, candidate.runs)
    most = min(len(baseline.runs), len(candidate.runs))
    looks = [one for one in LOOKS if one <= most]
    if not looks:
        raise UsageError(
            f"too few pairs of runs, {most}: a verdict is reached at {LOOKS[0]}, {LOOKS[1]} or "
            f"{LOOKS[2]}"
        )
    changes: tuple[MetricChange, ...] = ()
    for num in looks:
        runs = (*baseline.runs[:num], *candidate.runs[:num])
        metrics = gated_for(plan.metrics, runs)
        changes = judge(baseline.runs[:num], candidate.runs[:num], metrics, plan.thresholds)
        if overall(changes) is not Claim.INCONCLUSIVE:
            break
    kept = [one.model_copy(update={"runs": one.runs[:num]}) for one in (baseline, candidate)]
    return _result("paired", [kept[0]], kept[1], changes, plan, notes)


def _check_interleaved(
    baseline: Sequence[RunFigures], candidate: Sequence[RunFigures]
) -> tuple[str, ...]:
    pairs = list(zip(baseline, candidate, strict=False))
    if any(not run.started_utc for pair in pairs for run in pair):
        return ("the results do not tell when they were made: they are taken to be pairs in their "
                "order",)  # fmt: skip
    ends = [(min(a.started_utc, b.started_utc), max(a.started_utc, b.started_utc))
            for a, b in pairs]  # fmt: skip
    if any(after[0] < before[1] for before, after in pairwise(ends)):
        raise NotComparable(
            "the runs were not made in turns, so a drift of the machine looks like a change: run "
            "baseline and candidate one after the other, or add --stored for an advisory verdict"
        )
    return ()


def _result(
    method: str, earlier: Sequence[Session], candidate: Session,
    changes: tuple[MetricChange, ...], plan: GatePlan, notes: Sequence[str],
) -> GateResult:  # fmt: skip
    latest = earlier[-1]
    quality, quality_note = None, "not measured by both"
    if latest.quality is not None and candidate.quality is not None:
        most = plan.thresholds.max_perplexity_increase
        quality, quality_note = quality_change(latest.quality, candidate.quality, most), ""
    claim = worst([overall(changes), *([quality.claim] if quality else [])])
    is_stored = method == "stored"
    advisory = "advisory: " if is_stored else ""
    return GateResult(
        method="stored" if is_stored else "paired",
        is_advisory=is_stored,
        claim=claim,
        exit_code=exit_code(claim),
        message=advisory + say(claim, changes, quality, ""),
        baseline=latest,
        candidate=candidate,
        earlier=tuple(one.name for one in earlier) if is_stored else (),
        thresholds=plan.thresholds,
        metrics=changes,
        quality=quality,
        quality_note=quality_note,
        num_pairs=0 if is_stored else len(latest.runs),
        notes=tuple(dict.fromkeys(notes)),
    )
