"""Cli: dstune trace PROFILE, and dstune trace diff A B."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from dstune.cli.trace import diff, record

RECORD = "PROFILE"  # the name of the command that needs none


class ProfileFirst(TyperGroup):
    """A group whose first word is a profile, unless it is the name of a further command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts the recording command before anything that is no command's name."""
        is_command = bool(args) and args[0] in self.commands
        return super().parse_args(ctx, args if is_command else [RECORD, *args])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The same as ever, but the recording command has no name in usage lines."""
        name, command, rest = super().resolve_command(ctx, args)
        return "" if name == RECORD else name, command, rest


app = typer.Typer(
    cls=ProfileFirst, help="Shows where the time goes, and what differs between two traces."
)
app.command(RECORD, epilog=record.EXAMPLES)(record.run)
app.command("diff", epilog=diff.EXAMPLES)(diff.run)
