"""Cli: dstune sweep."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dstune.cli.places import RUNS
from dstune.errors import UsageError

if TYPE_CHECKING:
    from dstune.measure.run_folder import RunFolder
    from dstune.profile.model import Profile
    from dstune.target.target import Target

EXAMPLES = """Examples:

dstune sweep profiles/quickstart.yaml

dstune sweep profiles/realtime-chat.yaml --set slo.ttft_p99_ms=300 --budget 5m

dstune sweep profiles/offline-batch.yaml --dry-run

dstune sweep --resume reports/20260101T120000Z-sweep-quickstart"""


def run(
    profile: Annotated[Path | None, typer.Argument(help="The scenario, a YAML file.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a key; repeatable.")
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Wall clock, such as 5m.")] = None,
    trials: Annotated[int | None, typer.Option(help="Most trials of the search.")] = None,
    backend: Annotated[
        str | None, typer.Option(help="Kernels: auto, triton, cpu or reference.")
    ] = None,
    driver: Annotated[str | None, typer.Option(help="How load is driven: http or offline.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan only.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Go on with a run.")] = None,
    output: Annotated[Path, typer.Option(help="Where run folders go.")] = RUNS,
) -> int:
    """Finds the configuration to run: measures, confirms, writes recommended.yaml."""
    changes = list(overrides or [])
    changes += [f"{key}={value}" for key, value in
                (("budget.wall", budget), ("budget.trials", trials), ("driver", driver),
                 ("knobs.backend", backend))
                if value is not None]  # fmt: skip
    if profile is None and resume is None:
        raise UsageError("give a profile, or --resume RUN, which brings its own")
    if budget is not None and not budget.strip():
        raise UsageError("--budget must be a time such as 90s, 10m or 1h30m")
    if resume is not None:
        if profile is not None or changes or dry_run:
            raise UsageError("--resume brings the run's own profile: give nothing beside it")
        return _go_on(resume, output, as_json)
    from dstune.profile.load import load_profile
    from dstune.target.open import check_target

    assert profile is not None
    loaded = load_profile(profile, changes)
    check_target(loaded.target)
    if dry_run:
        return _show_plan(loaded, as_json)
    from dstune.measure.fingerprint import fingerprint
    from dstune.tune.sweep import begin

    return _carry_out(begin(loaded, output, sys.argv[1:], fingerprint()), as_json)


def _go_on(name: str, root: Path, as_json: bool) -> int:
    from dstune.measure.fingerprint import fingerprint
    from dstune.measure.run_folder import RunFolder
    from dstune.tune.sweep import resume

    folder = RunFolder.find(name, root)
    with folder.locked():
        resume(folder, fingerprint())
    return _carry_out(folder, as_json)


def _carry_out(folder: RunFolder, as_json: bool) -> int:
    from dstune.load.corpus import corpus_text
    from dstune.report import console, result
    from dstune.target import open as targets
    from dstune.tune.bench import Setting
    from dstune.tune.interrupt import one_gentle_stop
    from dstune.tune.sweep import sweep

    with folder.locked(), one_gentle_stop(), console.LiveConsole() as live:

        def open_target(one: Profile) -> Target:
            return targets.open_target(one, folder.log_path)

        outcome = sweep(folder, Setting(open_target, live, corpus_text))
    done = result.read_result(folder)
    if as_json:
        print(json.dumps(result.as_document(done), indent=1))
    else:
        console.print_result(done)
    return outcome.exit_code


def _show_plan(profile: Profile, as_json: bool) -> int:
    from dstune.report.console import print_plan
    from dstune.tune.space import plan_space

    space = plan_space(profile)
    if as_json:
        print(json.dumps(space.as_document(), indent=1))
    else:
        print_plan(space.trials, space.skipped, space.notes)
    return 0
