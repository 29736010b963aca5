"""Cli: a verdict of dstune gate in every form that is asked for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dstune.errors import DstuneError

if TYPE_CHECKING:
    from dstune.measure.comparison import GateResult


@dataclass(frozen=True)
class Shown:
    """How a result is to be shown."""

    as_json: bool
    junit: Path | None


def show(result: GateResult, folder: Path | None, shown: Shown) -> int:
    """Prints a result in every form that is asked for; returns its exit code."""
    from dstune.report import gate, github, junit

    if shown.junit is not None:
        junit.write_junit(result, shown.junit)
    if shown.as_json:
        print(json.dumps(gate.gate_document(result), indent=1))
    else:
        gate.print_gate(result, folder)
    github.announce(result)
    return result.exit_code


def no_verdict(error: DstuneError, shown: Shown) -> None:
    """Tells every reader that there is none, and why; the program prints the error itself."""
    from dstune.report import github, junit

    message = f"no verdict: {error}"
    if shown.junit is not None:
        junit.write_verdict(shown.junit, None, message)
    if shown.as_json:
        told = {"schema_version": 1, "claim": None, "exit_code": int(error.exit_code)}
        print(json.dumps({**told, "message": str(error)}, indent=1))
    github.announce_verdict(None, message, f"## dstune gate: {message}\n")
