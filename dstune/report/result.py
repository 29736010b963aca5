"""Report: everything a run folder tells, read once and printed in any form."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dstune.measure.comparison import GateResult
from dstune.measure.record import Recommendation, Run, TrialRecord
from dstune.measure.run_folder import RECOMMENDED, RunFolder

LOADTEST = "loadtest"  # as `Run.verb` spells it
TRACE = "trace"
GATE = "gate"


@dataclass(frozen=True)
class Result:
    """A run as it is on disk, finished or not."""

    folder: Path
    run: Run
    trials: tuple[TrialRecord, ...]
    recommendation: Recommendation | None
    is_written_now: bool
    gate: GateResult | None = None

    @property
    def search(self) -> list[TrialRecord]:
        """The search's trials."""
        return [one for one in self.trials if one.phase == "search"]

    @property
    def loadtest(self) -> TrialRecord | None:
        """The trial of a load test; None for a sweep, and before anything was measured."""
        return next((one for one in self.trials if one.phase == LOADTEST), None)

    @property
    def headline(self) -> str:
        """How the run ended or stands, in one line."""
        if self.run.verdict is not None:
            return f"{self.run.status}: {self.run.verdict.message}"
        if self.run.verb in (LOADTEST, TRACE, GATE):
            again = shlex.join(["dstune", *self.run.argv])
            return "running" if self.is_written_now else f"killed; run it again with: {again}"
        done = f"{len(self.search)} of {len(self.run.plan)} trials"
        if self.is_written_now:
            return f"running: {done} so far"
        return f"killed after {done}; go on with: dstune sweep --resume {self.folder}"

    @property
    def recommended_path(self) -> Path | None:
        """Where recommended.yaml lies, if there is one."""
        return self.folder / RECOMMENDED if self.recommendation else None


def read_result(folder: RunFolder) -> Result:
    """Reads a run folder; raises `DstuneError` when it is damaged."""
    return Result(
        folder=folder.path,
        run=folder.read_run(),
        trials=tuple(folder.trials()),
        recommendation=folder.recommendation(),
        is_written_now=folder.is_locked(),
        gate=folder.gate_result(),
    )


def as_document(result: Result) -> dict[str, Any]:
    """A run as one JSON document."""
    chosen = result.recommendation
    return {
        "schema_version": result.run.schema_version,
        "folder": str(result.folder),
        "run": result.run.model_dump(mode="json"),
        "trials": [one.model_dump(mode="json") for one in result.trials],
        "recommendation": chosen.model_dump(mode="json") if chosen else None,
        "gate": result.gate.model_dump(mode="json") if result.gate else None,
    }
