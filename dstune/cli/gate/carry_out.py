"""Cli: what dstune gate does once its options are read."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dstune.errors import UsageError

if TYPE_CHECKING:
    from dstune.gate.plan import GatePlan, GateSetting
    from dstune.gate.resolve import Asked
    from dstune.gate.sides import Side
    from dstune.measure.comparison import GateResult
    from dstune.measure.run_folder import RunFolder
    from dstune.report.gate import LiveGate
    from dstune.target.target import Target


@dataclass(frozen=True)
class Shown:
    """How a result is to be shown."""

    as_json: bool
    junit: Path | None


def exact(baseline: Sequence[str], candidate: str | None, as_json: bool) -> int:
    """Figures that must not change at all."""
    from dstune.gate.exact import compare_exact, read_exact
    from dstune.report import exact as shown

    if candidate is None or len(baseline) > 1:
        raise UsageError("exact figures: give one --baseline and --candidate FILE")
    result = compare_exact(read_exact(Path(baseline[0])), read_exact(Path(candidate)))
    if as_json:
        print(json.dumps(shown.exact_document(result), indent=1))
    else:
        shown.print_exact(result)
    return int(result.exit_code)


def paired(asked: Asked, plan: GatePlan, root: Path, shown: Shown) -> int:
    """Interleaved pairs; of other tools' results those that are there."""
    from dstune.gate import calibration, gate
    from dstune.gate.places import find
    from dstune.gate.resolve import is_profile, resolved
    from dstune.gate.sessions import read_sessions
    from dstune.gate.stored import against_results
    from dstune.measure.fingerprint import fingerprint
    from dstune.report.gate import LiveGate
    from dstune.tune.interrupt import one_gentle_stop

    if not is_profile(asked.baseline) and find(asked.baseline, root).kind in ("other", "sessions"):
        if asked.candidate is None:
            raise UsageError("results that cannot be measured again need --candidate RESULTS")
        before, after = (read_sessions(one, root)[0] for one in (asked.baseline, asked.candidate))
        return show(against_results(before, after, plan), None, shown)
    environment = fingerprint()
    with LiveGate() as live, resolved(asked, root, environment, live.notes) as sides:
        folder = gate.begin(*sides, root, sys.argv[1:], environment)
        found = calibration.known(calibration.path_of(sides[1], environment, root))
        live.notes(calibration.foresight(found, plan.thresholds))
        with folder.locked(), one_gentle_stop():
            setting = gate_setting(live, folder, environment)
            result = gate.carry_out(folder, *sides, plan, setting)
    return show(result, folder.path, shown)


def stored(names: Sequence[str], asked: Asked, plan: GatePlan, root: Path, shown: Shown) -> int:
    """Against earlier sessions, which are not measured again."""
    from dstune.gate import gate
    from dstune.gate.resolve import candidate_of
    from dstune.gate.sessions import read_sessions
    from dstune.gate.stored import against_stored
    from dstune.measure.fingerprint import fingerprint
    from dstune.report.gate import LiveGate
    from dstune.tune.interrupt import one_gentle_stop

    given = (asked.baseline_revision, asked.baseline_command, asked.baseline_url)
    if any(one is not None for one in given):
        raise UsageError("--stored starts no baseline: leave --baseline-... away, or --stored")
    earlier = [session for name in names for session in read_sessions(name, root)]
    if asked.candidate is not None:
        result = against_stored(earlier, read_sessions(asked.candidate, root)[-1], plan)
        return show(result, None, shown)
    environment = fingerprint()
    side = candidate_of(asked, root)
    folder = gate.begin(side, side, root, sys.argv[1:], environment)
    with LiveGate() as live, folder.locked(), one_gentle_stop():
        setting = gate_setting(live, folder, environment)
        result = gate.carry_out_stored(folder, side, earlier, plan, setting)
    return show(result, folder.path, shown)


def gate_setting(live: LiveGate, folder: RunFolder, environment: dict[str, Any]) -> GateSetting:
    """What a real gate stands on."""
    from dstune.gate.plan import GateSetting
    from dstune.load.corpus import corpus_text
    from dstune.target.open import Access, read_key

    access = Access(api_key=read_key(None))

    def open_side(side: Side, traces: bool) -> Target:
        return side.open(folder.log_path, access, traces)

    return GateSetting(open_side, live, corpus_text, environment)


def show(result: GateResult, folder: Path | None, shown: Shown) -> int:
    """Prints a result in every form that is asked for; returns its exit code."""
    from dstune.report import gate, github, junit

    if shown.junit is not None:
        junit.write_junit(result, shown.junit)
    if shown.as_json:
        print(json.dumps(gate.gate_document(result), indent=1))
    else:
        gate.print_gate(result, folder)
    github.announce(result)
    return result.exit_code
