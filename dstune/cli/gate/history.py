"""Cli: dstune gate history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dstune.cli.places import RUNS

EXAMPLES = """Examples:

dstune gate history

dstune gate history --profile quickstart --metric tpot_p95_ms --json"""


def run(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN]...", help="Only these runs.")
    ] = None,
    metric: Annotated[str, typer.Option(help="The figure to follow.")] = "ttft_p50_ms",
    profile: Annotated[str | None, typer.Option(help="Only runs of this profile.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    output: Annotated[Path, typer.Option(help="Where run folders are.")] = RUNS,
) -> int:
    """Shows a figure over earlier runs, with the points at which it changed."""
    from dstune.gate.baselines import BASELINES
    from dstune.gate.history import history
    from dstune.report import history as shown

    found = history(output, output / BASELINES, metric, profile, tuple(names or ()))
    if as_json:
        print(json.dumps(shown.history_document(found), indent=1))
    else:
        shown.print_history(found)
    return 0
