"""Gate: a whole comparison. Sides become pairs, pairs a verdict, a failure its explanation, and
all of it a run folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dstune.errors import DstuneError, ExitCode
from dstune.gate.explain import explain
from dstune.gate.paired import PairedGate
from dstune.gate.plan import GatePlan, GateSetting
from dstune.gate.sides import Side
from dstune.gate.stored import against_stored, measure_session
from dstune.measure.comparison import GateResult, Session
from dstune.measure.record import Claim, PlannedTrial, Run, Verdict
from dstune.measure.run_folder import GATE, RunFolder
from dstune.profile.load import dump_profile


def begin(
    baseline: Side, candidate: Side, root: Path, argv: Sequence[str], environment: dict[str, Any]
) -> RunFolder:
    """Makes the run folder of a gate; nothing is started yet."""
    folder = RunFolder.create(root, "gate", candidate.profile.name)
    folder.write_run(
        Run(
            verb="gate",
            status="running",
            argv=list(argv),
            started_utc=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            wall_clock_zero_ns=time.time_ns() - time.monotonic_ns(),
            profile=dump_profile(candidate.profile),
            environment=environment,
            plan=tuple(
                PlannedTrial(trial_id=one.name, origin="default", knobs=one.knobs, changed={})
                for one in (baseline, candidate)
            ),
        )
    )
    return folder


def carry_out(
    folder: RunFolder, baseline: Side, candidate: Side, plan: GatePlan, setting: GateSetting
) -> GateResult:
    """Measures, judges and explains; an error is raised after the run is marked failed."""

    def work() -> GateResult:
        result = PairedGate(folder, (baseline, candidate), plan, setting).run()
        if result.claim is Claim.FAIL and plan.explains:
            return explain(result, folder, (baseline, candidate), setting, plan.has_both_up)
        return result

    return _kept(folder, setting, work)


def carry_out_stored(
    folder: RunFolder, side: Side, earlier: Sequence[Session], plan: GatePlan, setting: GateSetting
) -> GateResult:
    """Measures the candidate alone and holds it against earlier sessions.

    Call `check_earlier` first, so that nothing is measured for nothing.
    """
    return _kept(
        folder,
        setting,
        lambda: against_stored(earlier, measure_session(folder, side, plan, setting), plan),
    )


def _kept(folder: RunFolder, setting: GateSetting, work: Callable[[], GateResult]) -> GateResult:
    """What the work comes to, with the run folder told how it ended."""
    setting.observer.begins(folder.read_run(), folder.path, 0)
    try:
        result = work()
    except KeyboardInterrupt:
        message = "interrupted before a verdict could be reached"
        _end(folder, "interrupted", Verdict(exit_code=ExitCode.INTERRUPTED, message=message))
        raise
    except Exception as error:
        code = error.exit_code if isinstance(error, DstuneError) else ExitCode.FAILED
        _end(folder, "failed", Verdict(exit_code=code, message=str(error)))
        raise
    folder.write_json(GATE, result.model_dump(mode="json"))
    was_interrupted = result.exit_code == ExitCode.INTERRUPTED
    status = "interrupted" if was_interrupted else "finished"
    _end(folder, status, Verdict(exit_code=result.exit_code, message=result.message))
    return result


def _end(folder: RunFolder, status: str, verdict: Verdict) -> None:
    changes = {"status": status, "verdict": verdict}
    folder.write_run(folder.read_run().model_copy(update=changes))
