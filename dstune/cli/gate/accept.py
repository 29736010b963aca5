"""Cli: dstune gate accept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dstune.cli.places import RUNS

EXAMPLES = """Examples:

dstune gate accept reports/20260101T120000Z-sweep-chat

dstune gate accept figures.json   # figures that must not change at all"""


def run(
    name: Annotated[str, typer.Argument(metavar="RUN", help="A run, or a file of exact figures.")],
    output: Annotated[Path, typer.Option(help="Where run folders are.")] = RUNS,
) -> int:
    """Makes a run a baseline, small enough to be committed, under reports/baselines/."""
    from dstune.gate.accept import accept
    from dstune.gate.baselines import BASELINES, read_baseline
    from dstune.gate.exact import accept_exact, is_exact, read_exact

    if is_exact(Path(name)):
        print(f"accepted: {accept_exact(read_exact(Path(name)), output)}")
        return 0
    path = accept(name, output, output / BASELINES)
    print(f"accepted: {path}")
    if note := read_baseline(path).note:
        print(note)
    return 0
