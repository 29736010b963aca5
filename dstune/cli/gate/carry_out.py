"""Cli: what dstune gate does once its options are read."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dstune.cli.gate.shown import Shown, show
from dstune.errors import UsageError

if TYPE_CHECKING:
    from dstune.gate.plan import GatePlan, GateSetting
    from dstune.gate.resolve import Asked
    from dstune.gate.sides import Side
    from dstune.measure.run_folder import RunFolder
    from dstune.report.gate import LiveGate
    from dstune.target.target import Target


def gate(
    names: Sequence[str], asked: Asked, plan: GatePlan, root: Path, shown: Shown, *, is_stored: bool
) -> int:
    """Whichever comparison is asked for."""
    from dstune.gate.exact import is_exact

    if is_exact(Path(names[0])):
        return exact(names, asked, shown)
    if is_stored:
        return stored(names, asked, plan, root, shown)
    if len(names) > 1:
        raise UsageError("several baselines go with --stored: pairs are made with one")
    return paired(asked, plan, root, shown)


def exact(baseline: Sequence[str], asked: Asked, shown: Shown) -> int:
    """Figures that must not change at all."""
    from dstune.gate.exact import compare_exact, read_exact
    from dstune.measure.record import Claim
    from dstune.report import exact as report
    from dstune.report import github, junit

    if asked.candidate is None or len(baseline) > 1:
        raise UsageError("exact figures: give one --baseline and --candidate FILE")
    asked.check_starts_nothing("exact figures")
    result = compare_exact(read_exact(Path(baseline[0])), read_exact(Path(asked.candidate)))
    claim = Claim.PASS if result.is_pass else Claim.FAIL
    if shown.junit is not None:
        junit.write_verdict(shown.junit, claim, result.message)
    if shown.as_json:
        print(json.dumps(report.exact_document(result), indent=1))
    else:
        report.print_exact(result)
    github.announce_verdict(claim, result.message, report.exact_markdown(result))
    return int(result.exit_code)


def paired(asked: Asked, plan: GatePlan, root: Path, shown: Shown) -> int:
    """Interleaved pairs; of other tools' results those that are there."""
    from dstune.gate import calibration
    from dstune.gate import gate as whole
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
        asked.check_starts_nothing("results that are there")
        before, after = (read_sessions(one, root)[0] for one in (asked.baseline, asked.candidate))
        return show(against_results(before, after, plan), None, shown)
    environment = fingerprint()
    with LiveGate() as live, resolved(asked, root, environment, live.notes) as sides:
        if (
            plan.has_both_up
            and environment["gpus"]
            and all(one.source.is_embedded for one in sides)
        ):
            live.notes(
                "one side is up at a time: on a GPU each engine takes the memory that it finds"
            )
            plan = replace(plan, has_both_up=False)
        live.notes("; ".join(f"{one.name}: {one.source.describe()}" for one in sides))
        folder = whole.begin(*sides, root, sys.argv[1:], environment)
        found = calibration.known(calibration.path_of(sides[1], environment, root))
        live.notes(calibration.foresight(found, plan.thresholds))
        with folder.locked(), one_gentle_stop():
            setting = gate_setting(live, folder, environment)
            result = whole.carry_out(folder, *sides, plan, setting)
    return show(result, folder.path, shown)


def stored(names: Sequence[str], asked: Asked, plan: GatePlan, root: Path, shown: Shown) -> int:
    """Against earlier sessions, which are not measured again."""
    from dstune.gate import gate as whole
    from dstune.gate.resolve import candidate_of
    from dstune.gate.sessions import read_sessions
    from dstune.gate.stored import against_stored, check_earlier
    from dstune.measure.fingerprint import fingerprint
    from dstune.report.gate import LiveGate
    from dstune.tune.interrupt import one_gentle_stop

    given = (asked.baseline_revision, asked.baseline_command, asked.baseline_url)
    if any(one is not None for one in given):
        raise UsageError("--stored starts no baseline: leave --baseline-... away, or --stored")
    earlier = [session for name in names for session in read_sessions(name, root)]
    if asked.candidate is not None:
        asked.check_starts_nothing("results that are there")
        result = against_stored(earlier, read_sessions(asked.candidate, root)[-1], plan)
        return show(result, None, shown)
    check_earlier(earlier)
    environment = fingerprint()
    side = candidate_of(asked, root)
    folder = whole.begin(side, side, root, sys.argv[1:], environment)
    with LiveGate() as live, folder.locked(), one_gentle_stop():
        setting = gate_setting(live, folder, environment)
        result = whole.carry_out_stored(folder, side, earlier, plan, setting)
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
