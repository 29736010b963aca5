"""Cli: dstune kernels; each of its verbs is one module."""

from __future__ import annotations

import typer

from dstune.cli.kernels import bench, compile, tune, verify

app = typer.Typer(
    help="Proves, compiles, times and tunes the kernels that the engine runs on.",
    no_args_is_help=True,
)
app.command("verify", epilog=verify.EXAMPLES)(verify.run)
app.command("compile", epilog=compile.EXAMPLES)(compile.run)
app.command("bench", epilog=bench.EXAMPLES)(bench.run)
app.command("tune", epilog=tune.EXAMPLES)(tune.run)
