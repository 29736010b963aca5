"""Cli: dstune gate, and what goes with it."""

from __future__ import annotations

import typer

from dstune.cli.gate import accept, calibrate, history, run
from dstune.cli.gate.run import EXAMPLES

__all__ = ["EXAMPLES", "app"]

app = typer.Typer(
    help="Has anything got slower? Pass, fail or inconclusive, from interleaved pairs of runs.",
    invoke_without_command=True,
)
app.callback()(run.run)
app.command("calibrate", epilog=calibrate.EXAMPLES)(calibrate.run)
app.command("history", epilog=history.EXAMPLES)(history.run)
app.command("accept", epilog=accept.EXAMPLES)(accept.run)
