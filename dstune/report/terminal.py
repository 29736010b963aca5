"""Report: tables on a terminal or a pipe."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from dstune.report.tables import Table

PIPE_WIDTH = 140
REFRESH_PER_S = 2  # the display shares the cores with what is measured


def as_rich(table: Table, title: str = "") -> RichTable:
    """A table for the console."""
    rich = RichTable(title=title or None, title_justify="left", header_style="bold", expand=False)
    for at, name in enumerate(table.head):
        rich.add_column(name, overflow="fold", no_wrap=at == 0)
    for at, row in enumerate(table.rows):
        rich.add_row(*map(Text, row), style="bold green" if at in table.marked else None)
    return rich


def stdout() -> Console:
    """Standard output; into a file or pipe it is wide, for there is no window to fit."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)
