"""Gate: baseline and candidate measured as interleaved pairs, judged at each look.

Pairs are what makes a verdict believable: both sides meet the same prompts, arrivals and moment,
in random order, in processes of their own for every pair.
"""

from __future__ import annotations

import random

from dstune.errors import NotComparable
from dstune.gate.comparable import check_comparable
from dstune.gate.contest import Contestant, Measured, Pair, run_of, run_pair, subject_of
from dstune.gate.plan import GatePlan, GateSetting
from dstune.gate.quality import score_side
from dstune.gate.sides import Side
from dstune.gate.verdict import conclude
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

MOST_REPEATED = 3
"""Pairs that may be measured again, for they could not be trusted, before a gate gives up."""


def run_paired(
    folder: RunFolder, baseline: Side, candidate: Side, plan: GatePlan, setting: GateSetting
) -> GateResult:
    """Measures pairs until a look decides, the last look is over, or the budget ends.

    Raises `NotComparable` for failed requests, a missing metric, another model or precision. On
    Ctrl-C what was measured is judged by its last look.
    """
    found = Measured()
    contest = (Contestant(baseline, folder, setting), Contestant(candidate, folder, setting))
    try:
        _measure(folder, contest, plan, setting, found)
    except KeyboardInterrupt:
        found.was_interrupted, found.end = True, "interrupted"
        if found.first is None:
            raise
    finally:
        for one in contest:
            one.stop()
    sessions = [
        _session(folder, side, runs, found, setting)
        for side, runs in ((baseline, found.baseline), (candidate, found.candidate))
    ]
    return conclude(sessions[0], sessions[1], found, plan)


def _measure(
    folder: RunFolder, contest: tuple[Contestant, Contestant], plan: GatePlan,
    setting: GateSetting, found: Measured,
) -> None:  # fmt: skip
    order = random.Random(plan.seed)
    started_ns = setting.clock_ns()
    eta_s: float | None = None
    for number in range(1, plan.most_pairs + 1):
        setting.observer.pair(number, plan.most_pairs, eta_s)
        pair = _trusted_pair(folder, contest, number, plan, setting, found, order)
        if pair is None:
            return
        if found.first is None:
            found.first = pair
            _check_alike(contest, pair, setting)
        spent_s = (setting.clock_ns() - started_ns) / 1e9
        eta_s = spent_s / number * (plan.most_pairs - number)
        if number in LOOKS:
            found.changes = look(found, plan)
            setting.observer.looked(found.changes)
            if overall(found.changes) is not Claim.INCONCLUSIVE:
                return
        following = next((one for one in LOOKS if one > number), number)
        if plan.budget_s is not None and spent_s / number * following > plan.budget_s:
            found.end = f"the budget has no time for {following} pairs"
            return


def look(found: Measured, plan: GatePlan) -> tuple[MetricChange, ...]:
    """What the pairs so far say."""
    metrics = gated_for(plan.metrics, [*found.baseline, *found.candidate])
    return judge(found.baseline, found.candidate, metrics, plan.thresholds)


def _trusted_pair(
    folder: RunFolder, contest: tuple[Contestant, Contestant], number: int, plan: GatePlan,
    setting: GateSetting, found: Measured, order: random.Random,
) -> Pair | None:  # fmt: skip
    """A pair whose figures nothing voids, or none: then the gate cannot go on."""
    for attempt in range(2):
        prefix = f"p{number:02d}" + "r" * attempt
        pair = _one_pair(contest, prefix, number, plan, setting, found, order)
        if not pair.doubts:
            found.baseline.append(_run(folder, contest[0], pair, prefix))
            found.candidate.append(_run(folder, contest[1], pair, prefix))
            return pair
        found.num_repeated += 1
        if attempt or found.num_repeated > MOST_REPEATED:
            break
        setting.observer.notes(f"pair {number} is measured again: {pair.doubts}")
    found.end = f"pair {number} cannot be trusted: {pair.doubts}"
    found.first = found.first or pair
    return None


def _one_pair(
    contest: tuple[Contestant, Contestant], prefix: str, number: int, plan: GatePlan,
    setting: GateSetting, found: Measured, order: random.Random,
) -> Pair:  # fmt: skip
    repetitions = [(number - 1) * plan.num_loads + at for at in range(plan.num_loads)]
    try:
        for one in contest:
            one.start()
        pair = run_pair(contest[0], contest[1], prefix, repetitions, order)
        if plan.quality_windows and not found.quality:
            found.quality = {
                one.side.name: score_side(one, plan.quality_windows, setting) for one in contest
            }
        return pair
    finally:
        for one in contest:
            one.stop()


def _run(folder: RunFolder, one: Contestant, pair: Pair, prefix: str) -> RunFigures:
    name = one.side.name
    trials = pair.baseline if name == "baseline" else pair.candidate
    run = run_of(folder, f"{prefix}-{name}", trials, one.side.profile)
    if run.num_failed:
        raise NotComparable(
            f"{run.num_failed} of {run.num_ok + run.num_failed} requests of the {name} failed in "
            f"{run.name}: the figures of those that are left are of a chosen few"
        )
    return run


def _check_alike(contest: tuple[Contestant, Contestant], pair: Pair, setting: GateSetting) -> None:
    """Raises `NotComparable` where the sides turn out to be of another model or precision."""
    notes = check_comparable(
        subject_of(contest[0].side, pair.baseline[0], setting),
        subject_of(contest[1].side, pair.candidate[0], setting),
    )
    for note in notes:
        setting.observer.notes(note)


def _scores(scored: QualityScores | str | None) -> QualityScores | None:
    return scored if isinstance(scored, QualityScores) else None


def _session(
    folder: RunFolder, side: Side, runs: list[RunFigures], found: Measured, setting: GateSetting
) -> Session:
    assert found.first is not None
    trials = found.first.baseline if side.name == "baseline" else found.first.candidate
    return Session(
        name=f"{folder.path.name}/{side.name}",
        source=str(folder.path),
        started_utc=runs[0].started_utc if runs else "",
        subject=subject_of(side, trials[0], setting),
        runs=tuple(runs),
        quality=_scores(found.quality.get(side.name)),
    )
