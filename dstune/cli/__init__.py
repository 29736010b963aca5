"""Cli: one Typer module per verb; maps errors to exit codes."""
