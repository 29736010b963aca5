"""Cli: what the verbs of dstune kernels have in common."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer

from dstune.errors import UsageError

Only = Annotated[
    str | None,
    typer.Option(
        metavar="WORDS", help="Only these folders or operations, or cases whose names contain them."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


def words(text: str | None, option: str = "--only") -> list[str]:
    """The words between commas, none without the option; raises UsageError for an empty one."""
    if text is None:
        return []
    found = [one.strip() for one in text.split(",")]
    if not all(found):
        raise UsageError(f"{option} has an empty word; give words with commas between them")
    return found


def show(
    found: Any,
    document: Callable[[Any], dict[str, Any]],
    show_tables: Callable[[Any], None],
    as_json: bool,
) -> None:
    """Prints a result in one of its two forms."""
    if as_json:
        print(json.dumps(document(found), indent=1, allow_nan=False))
    else:
        show_tables(found)
