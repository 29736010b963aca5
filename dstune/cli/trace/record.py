"""Cli: dstune trace PROFILE."""

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
    from dstune.tune.trace import Outcome, TraceJob

EXAMPLES = """Examples:

dstune trace --target embedded

dstune trace profiles/quickstart.yaml --closed --set knobs.max_num_seqs=8

dstune trace diff A B, two such traces: see dstune trace diff --help"""


def run(
    profile: Annotated[Path | None, typer.Argument(help="The scenario, a YAML file.")] = None,
    target: Annotated[
        str | None, typer.Option(help="embedded; without a profile under a small load.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Override a key; repeatable.")
    ] = None,
    closed: Annotated[
        bool,
        typer.Option("--closed", help="As a closed loop without HTTP: steps that can be matched."),
    ] = False,
    repeat: Annotated[int, typer.Option(min=1, max=100, help="Loads, of the same requests.")] = 3,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Keep the first so many steps of each load.")
    ] = None,
    recommended: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="The configuration of a sweep's recommended.yaml."),
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="Kernels: auto, triton, cpu or reference.")
    ] = None,
    driver: Annotated[str | None, typer.Option(help="How load is driven: http or offline.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    output: Annotated[Path, typer.Option(help="Where run folders go.")] = RUNS,
) -> int:
    """Shows where the time goes, by phase and operation; writes timeline.json for Perfetto."""
    from dstune.measure.fingerprint import fingerprint
    from dstune.tune.loadtest import configuration
    from dstune.tune.trace import TraceJob, begin, check_target, deterministic

    if closed and driver == "http":
        raise UsageError("--closed goes without HTTP: leave --driver away")
    if profile is None and target is None:
        raise UsageError("give a profile, or --target embedded for a small load; see --help")
    changes = list(overrides or [])
    changes += [f"{key}={json.dumps(value)}" for key, value in
                (("target", target), ("driver", driver), ("knobs.backend", backend))
                if value is not None]  # fmt: skip
    loaded = _profile(profile, changes)
    check_target(loaded.target)
    knobs = configuration(loaded, recommended, output)
    job = TraceJob(deterministic(loaded, knobs) if closed else loaded, knobs, closed, steps)
    return _carry_out(begin(job, output, sys.argv[1:], fingerprint()), job, repeat, as_json)


def _profile(path: Path | None, changes: list[str]) -> Profile:
    from dstune.profile.load import load_profile, parse_profile
    from dstune.tune.trace import SMALL_LOAD

    if path is None:
        return parse_profile("the small load", SMALL_LOAD, changes)
    return load_profile(path, changes)


def _carry_out(folder: RunFolder, job: TraceJob, repeat: int, as_json: bool) -> int:
    from dstune.load.corpus import corpus_text
    from dstune.report.operations import TraceProgress
    from dstune.report.progress import ProgressBars
    from dstune.tune import trace
    from dstune.tune.bench import Setting
    from dstune.tune.interrupt import one_gentle_stop

    with folder.locked(), one_gentle_stop(), ProgressBars() as bars:

        def open_target(one: Profile) -> Target:
            return trace.open_traced(one, folder.log_path)

        setting = Setting(open_target, TraceProgress(bars), corpus_text)
        outcome = trace.trace(folder, job, repeat, setting)
    _show(outcome, folder, as_json)
    return outcome.exit_code


def _show(outcome: Outcome, folder: RunFolder, as_json: bool) -> None:
    from dstune.report import operations
    from dstune.report.timeline import chrome_trace
    from dstune.stats.operations import summarize

    recorded, verdict = outcome.trace, outcome.run.verdict
    summary = None if recorded is None else summarize(recorded)
    if recorded is not None:
        folder.write_json("timeline.json", chrome_trace(recorded))
    if as_json:
        document = operations.trace_document(folder.path, outcome.run, summary)
        print(json.dumps(document, indent=1))
    elif summary is not None and verdict is not None:
        operations.print_trace(summary, verdict.message, folder.path)
    elif verdict is not None:
        print(verdict.message)
