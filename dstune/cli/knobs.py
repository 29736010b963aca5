"""Cli: dstune knobs."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from dstune.errors import UsageError

EXAMPLES = """Examples:

dstune knobs

dstune knobs --format md"""


def run(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    form: Annotated[str, typer.Option("--format", help="table, md or json.")] = "table",
) -> int:
    """Shows the knobs that can be tuned, their values, and what changing one costs."""
    from dstune.report import console, tables

    table = tables.knob_table()
    match "json" if as_json else form:
        case "json":
            print(json.dumps(tables.as_records(table), indent=1))
        case "md":
            print(tables.as_markdown(table), end="")
        case "table":
            console.print_table(tables.narrow_knob_table())
        case other:
            raise UsageError(f"--format must be table, md or json, not '{other}'")
    return 0
