"""Cli: what the verbs of dstune kernels have in common."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer

Only = Annotated[
    str,
    typer.Option(
        metavar="WORDS", help="Only cases whose folder/operation-name contains one of these words."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


def words(text: str) -> list[str]:
    """The words between commas."""
    return [one.strip() for one in text.split(",") if one.strip()]


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
