"""Cli: dstune report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dstune.cli.places import RUNS
from dstune.errors import UsageError

EXAMPLES = """Examples:

dstune report reports/20260101T120000Z-sweep-quickstart

dstune report 20260101T120000Z-sweep-quickstart --format md > summary.md"""


def run(
    name: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or its name.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    form: Annotated[str, typer.Option("--format", help="table, md, csv or json.")] = "table",
    output: Annotated[Path, typer.Option(help="Where run folders are.")] = RUNS,
) -> int:
    """Prints a run again, also one that was interrupted."""
    from dstune.measure.run_folder import RunFolder
    from dstune.report import console, markdown, result, tables

    read = result.read_result(RunFolder.find(name, output))
    match "json" if as_json else form:
        case "json":
            print(json.dumps(result.as_document(read), indent=1))
        case "md":
            print(markdown.summary(read), end="")
        case "csv":
            print(tables.trials_csv(read), end="")
        case "table":
            console.print_result(read)
        case other:
            raise UsageError(f"--format must be table, md, csv or json, not '{other}'")
    return 0
