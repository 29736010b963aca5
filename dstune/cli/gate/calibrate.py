"""Cli: dstune gate calibrate."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from dstune.cli.places import RUNS

EXAMPLES = """Examples:

dstune gate calibrate profiles/quickstart.yaml

dstune gate calibrate reports/20260101T120000Z-sweep-chat --comparisons 5"""


def run(
    what: Annotated[str, typer.Argument(metavar="NAME", help="A profile, or a run.")],
    comparisons: Annotated[
        int, typer.Option(min=1, help="Whole gates of the same thing against itself.")
    ] = 1,
    overrides: Annotated[
        list[str] | None, typer.Option("--profile-set", metavar="A.B=C", help="Of a profile.")
    ] = None,
    loads: Annotated[int, typer.Option(min=1, max=100, help="Per side and pair, in turns.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    output: Annotated[Path, typer.Option(help="Where run folders go.")] = RUNS,
) -> int:
    """Measures this host's noise: the same thing against itself, pair by pair.

    What is found adds to what earlier calls found for this host, model and load.
    """
    import secrets

    from dstune.cli.gate.carry_out import gate_setting
    from dstune.gate import calibration, gate
    from dstune.gate.plan import GatePlan
    from dstune.gate.resolve import origin
    from dstune.gate.sides import Side, fit_together
    from dstune.measure.fingerprint import fingerprint
    from dstune.report import gate as shown
    from dstune.tune.interrupt import one_gentle_stop

    environment = fingerprint()
    one = origin(what, output, tuple(overrides or ()))
    side = Side("candidate", one.profile, one.knobs)
    sides = replace(side, name="baseline"), side
    for number in range(1, comparisons + 1):
        plan = GatePlan(
            num_loads=loads, has_both_up=fit_together(sides, environment), quality_windows=0,
            explains=False, seed=secrets.randbelow(1 << 32),
        )  # fmt: skip
        folder = gate.begin(*sides, output, sys.argv[1:], environment)
        with shown.LiveGate() as live, folder.locked(), one_gentle_stop():
            live.notes(f"comparison {number} of {comparisons}: the same thing against itself")
            setting = gate_setting(live, folder, environment)
            result = gate.carry_out(folder, *sides, plan, setting)
        if result.exit_code == 130:
            return 130
        found = calibration.learn(side, result, environment, output)
    if as_json:
        print(json.dumps(found.model_dump(mode="json"), indent=1))
    else:
        shown.print_calibration(found, calibration.path_of(side, environment, output))
    return 0
