"""Report: progress of counted work on standard error, with an ETA."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)


class ProgressBars:
    """One bar per named piece of work, drawn while the block is open."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[now]}", markup=False),
            console=Console(stderr=True),
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> ProgressBars:
        self._progress.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.__exit__(kind, error, trace)

    def report(self, name: str, done: int, planned: int, now: str = "") -> None:
        """Moves the bar of `name`, which begins at the first call; `now` stands behind it."""
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=planned, now="")
        self._progress.update(self._tasks[name], completed=done, now=now)

    def named(self, name: str) -> Callable[[str, int, int], None]:
        """One bar for work whose reports say what it is at."""
        return lambda now, done, planned: self.report(name, done, planned, now)
