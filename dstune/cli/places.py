"""Cli: where things lie unless told otherwise."""

from __future__ import annotations

from pathlib import Path

RUNS = Path("reports")
