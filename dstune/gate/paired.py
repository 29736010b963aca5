"""Gate: baseline and candidate measured as interleaved pairs, judged at each look.

Pairs are what makes a verdict believable: both sides meet the same prompts, arrivals and moment,
in random order, in processes of their own for every pair.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from dstune.errors import NotComparable
from dstune.gate.comparable import check_comparable
from dstune.gate.contest import (
    Contestant,
    Measured,
    Pair,
    run_of,
    run_turns,
    start_both,
    subject_of,
)
from dstune.gate.plan import GatePlan, GateSetting
from dstune.gate.quality import score_side
from dstune.gate.sides import Side, SideName
from dstune.gate.verdict import conclude
from dstune.measure.comparison import GateResult, QualityScores, RunFigures, Session
from dstune.measure.record import Claim, TrialRecord
from dstune.measure.run_folder import RunFolder
from dstune.stats.paired import LOOKS, gated_for, judge, overall

MOST_REPEATED = 3
"""Pairs that may be measured again, for they could not be trusted, before a gate gives up."""


class PairedGate:
    """Two sides, and what was measured of them so far."""

    def __init__(
        self, folder: RunFolder, sides: tuple[Side, Side], plan: GatePlan, setting: GateSetting
    ) -> None:
        self._folder = folder
        self._plan = plan
        self._setting = setting
        baseline, candidate = sides
        self._baseline = Contestant(baseline, folder, setting)
        self._candidate = Contestant(candidate, folder, setting)
        self._order = random.Random(plan.seed)
        self._found = Measured()

    def run(self) -> GateResult:
        """Measures pairs until a look decides, the last look is over, or the budget ends.

        Raises `NotComparable` for failed requests, a missing metric, another model or precision.
        On Ctrl-C what was measured is judged by its last look.
        """
        found = self._found
        try:
            self._measure()
        except KeyboardInterrupt:
            found.was_interrupted, found.end = True, "interrupted"
            if found.first is None:
                raise
        finally:
            self._stop()
        assert found.first is not None
        baseline = self._session(self._baseline, found.baseline, found.first)
        candidate = self._session(self._candidate, found.candidate, found.first)
        return conclude(baseline, candidate, found, self._plan)

    def _measure(self) -> None:
        clock_ns, budget_s = self._setting.clock_ns, self._plan.budget_s
        started_ns, eta_s = clock_ns(), None
        for number in range(1, LOOKS[-1] + 1):
            self._setting.observer.pair(number, LOOKS[-1], eta_s)
            if not self._take_pair(number):
                return
            each_s = (clock_ns() - started_ns) / 1e9 / number
            eta_s = each_s * (LOOKS[-1] - number)
            if number in LOOKS and self._look() is not Claim.INCONCLUSIVE:
                return
            following = next((one for one in LOOKS if one > number), number)
            if budget_s is not None and each_s * following > budget_s:
                self._found.end = f"the budget has no time for {following} pairs"
                return

    def _look(self) -> Claim:
        """What the pairs so far say."""
        found = self._found
        metrics = gated_for(self._plan.metrics, [*found.baseline, *found.candidate])
        found.changes = judge(found.baseline, found.candidate, metrics, self._plan.thresholds)
        self._setting.observer.looked(found.changes)
        return overall(found.changes)

    def _take_pair(self, number: int) -> bool:
        """Adds a pair that nothing voids; False when there is none, which ends the gate."""
        found = self._found
        for attempt in range(2):
            prefix = f"p{number:02d}" + "r" * attempt
            pair = self._pair(number, prefix)
            if found.first is None:
                found.first = pair
                self._check_alike(pair)
            if not pair.doubts:
                found.baseline.append(self._run(self._baseline, pair.baseline, prefix))
                found.candidate.append(self._run(self._candidate, pair.candidate, prefix))
                return True
            found.num_repeated += 1
            if attempt or found.num_repeated > MOST_REPEATED:
                break
            self._setting.observer.notes(f"pair {number} is measured again: {pair.doubts}")
        found.end = f"pair {number} cannot be trusted: {pair.doubts}"
        return False

    def _pair(self, number: int, prefix: str) -> Pair:
        """One pair in fresh processes and in random order."""
        plan, turn = self._plan, [self._baseline, self._candidate]
        self._order.shuffle(turn)
        repetitions = [(number - 1) * plan.num_loads + at for at in range(plan.num_loads)]
        together = [turn] if plan.has_both_up else [[one] for one in turn]
        found: dict[SideName, tuple[TrialRecord, ...]] = {}
        for group in together:
            try:
                start_both(group)
                found |= run_turns(group, prefix, repetitions)
                self._score(group)
            finally:
                self._stop()
        return Pair(found["baseline"], found["candidate"])

    def _score(self, group: Sequence[Contestant]) -> None:
        """Quality, once for each side."""
        quality = self._found.quality
        for one in group:
            if self._plan.quality_windows and one.side.name not in quality:
                scores = score_side(one, self._plan.quality_windows, self._setting)
                quality[one.side.name] = scores

    def _run(self, one: Contestant, trials: tuple[TrialRecord, ...], prefix: str) -> RunFigures:
        name = one.side.name
        run = run_of(self._folder, f"{prefix}-{name}", trials, one.side.profile)
        if run.num_failed:
            raise NotComparable(
                f"{run.num_failed} of {run.num_ok + run.num_failed} requests of the {name} failed "
                f"in {run.name}: the figures of those that are left are of a chosen few"
            )
        return run

    def _check_alike(self, pair: Pair) -> None:
        """Raises `NotComparable` where the sides turn out to be of another model or precision."""
        notes = check_comparable(
            subject_of(self._baseline.side, pair.baseline[0], self._setting),
            subject_of(self._candidate.side, pair.candidate[0], self._setting),
        )
        for note in notes:
            self._setting.observer.notes(note)

    def _session(self, one: Contestant, runs: list[RunFigures], first: Pair) -> Session:
        side = one.side
        trials = first.baseline if side.name == "baseline" else first.candidate
        scored = self._found.quality.get(side.name)
        return Session(
            name=f"{self._folder.path.name}/{side.name}",
            source=str(self._folder.path),
            started_utc=runs[0].started_utc if runs else "",
            subject=subject_of(side, trials[0], self._setting),
            runs=tuple(runs),
            quality=scored if isinstance(scored, QualityScores) else None,
        )

    def _stop(self) -> None:
        for one in (self._baseline, self._candidate):
            one.stop()
