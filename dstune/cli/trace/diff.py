"""Cli: dstune trace diff."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dstune.cli.places import RUNS
from dstune.errors import UsageError

EXAMPLES = """Examples:

dstune trace diff 20260101T120000Z-trace-quickstart 20260101T130000Z-trace-quickstart

dstune trace diff A B --format md >> summary.md"""


def run(
    baseline: Annotated[
        str, typer.Argument(metavar="A", help="A traced run, its name, or a folder with a trace.")
    ],
    candidate: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    form: Annotated[str, typer.Option("--format", help="table, md or json.")] = "table",
    output: Annotated[Path, typer.Option(help="Where run folders are.")] = RUNS,
) -> int:
    """Names the operations that explain why B is slower than A, and each one's share.

    Both are traces of one profile on one machine, best with --closed and three loads or more.
    """
    from dstune.measure.run_folder import RunFolder
    from dstune.measure.trace_files import has_trace, read_trace
    from dstune.report import operations
    from dstune.stats.operation_diff import diff

    if form not in ("table", "md", "json"):
        raise UsageError(f"--format must be table, md or json, not '{form}'")
    folders = [  # a gate keeps its traces in folders below its own
        Path(one) if has_trace(Path(one)) else RunFolder.find(one, output).path
        for one in (baseline, candidate)
    ]
    found = diff(*(read_trace(one) for one in folders))
    if as_json or form == "json":
        names = (str(folders[0]), str(folders[1]))
        print(json.dumps(operations.diff_document(names, found), indent=1))
    elif form == "md":
        print(operations.diff_markdown(found), end="")
    else:
        operations.print_diff(found)
    return 0
