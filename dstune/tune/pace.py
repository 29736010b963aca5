"""Tune: what trials and restarts have cost so far, and from that what the rest will cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dstune.knobs import RESTART_ORDER, Restart
from dstune.measure.record import PlannedTrial, TrialRecord


@dataclass
class Pace:
    """Means of measured seconds per repetition and per kind of restart."""

    _repetitions_s: list[float] = field(default_factory=list)
    _restarts_s: dict[Restart, list[float]] = field(default_factory=dict)

    def add(self, trial: TrialRecord) -> None:
        """Learns from a finished trial."""
        if trial.is_measured:
            load_s = trial.elapsed_s - trial.start_s - trial.restart_s
            self._repetitions_s.append(max(load_s, 0.0) / max(len(trial.repetitions), 1))
        if trial.restart is not None:
            self._restarts_s.setdefault(trial.restart, []).append(trial.restart_s)

    @property
    def is_known(self) -> bool:
        """Whether anything was measured yet."""
        return bool(self._repetitions_s)

    def repetition_s(self) -> float:
        """Seconds of one repetition with its share of the warm-up."""
        return _mean(self._repetitions_s)

    def restart_s(self, restart: Restart | None) -> float:
        """Seconds of a restart; of an unseen kind, those of the next dearer one that was seen."""
        if restart is None:
            return 0.0
        for kind in RESTART_ORDER[RESTART_ORDER.index(restart) :]:
            if kind in self._restarts_s:
                return _mean(self._restarts_s[kind])
        return 0.0

    def trial_s(self, trial: PlannedTrial, num_repetitions: int) -> float:
        """Seconds that a trial is going to take."""
        return self.restart_s(trial.restart) + num_repetitions * self.repetition_s()

    def trials_s(self, trials: Iterable[PlannedTrial], num_repetitions: int) -> float:
        """Seconds of several trials in their order."""
        return sum(self.trial_s(trial, num_repetitions) for trial in trials)

    def confirmation_s(self, num_configurations: int, rounds: int) -> float:
        """Seconds of an interleaved confirmation: a restart before nearly every repetition."""
        return num_configurations * rounds * (self.repetition_s() + self._typical_restart_s())

    def _typical_restart_s(self) -> float:
        return _mean([one for kind in self._restarts_s.values() for one in kind])


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
