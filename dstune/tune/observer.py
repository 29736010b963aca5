"""Tune: what a sweep tells while it runs; `report` shows it, tests record it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from dstune.measure.progress import LoadProgress
from dstune.measure.record import Run, Started, TrialRecord


class Observer(Protocol):
    """Receives a sweep's events in order."""

    def begins(self, run: Run, folder: Path, num_finished: int) -> None:
        """The sweep begins, or goes on with `num_finished` trials of the plan done."""

    def notes(self, text: str) -> None:
        """Something that people should know, once."""

    def starts(self, trial: Started) -> None:
        """A trial begins."""

    def advances(self, repetition: int, num_repetitions: int, progress: LoadProgress) -> None:
        """Requests of the running repetition have ended; a few times a second."""

    def finishes(self, trial: TrialRecord) -> None:
        """A trial has ended and is on disk."""
