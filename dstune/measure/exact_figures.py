"""Measure: figures that are the same on every run, and how two sets of them differ, as types.

Kernels per step or bytes per token: nothing is estimated, so any difference is a change. `gate`
compares them, `report` shows the result. Data only.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AllowInfNan, Field, Strict

from dstune.errors import ExitCode
from dstune.measure.record import Record

Exact = Annotated[int, Strict()] | Annotated[float, Strict(), AllowInfNan(False)]


class ExactFigures(Record):
    """A set of figures, and the versions of other software that they hold for."""

    schema_version: Literal[1] = 1
    kind: Literal["exact"] = "exact"
    name: str = Field(pattern=r"^\w[\w.-]*$")  # becomes a file's name
    environment: dict[str, str]
    figures: dict[str, Exact] = Field(min_length=1)


class ExactChange(Record):
    """A figure that both sides have, with another value."""

    figure: str
    baseline: Exact
    candidate: Exact


class ExactResult(Record):
    """A candidate beside its baseline; any difference fails."""

    schema_version: Literal[1] = 1
    kind: Literal["exact"] = "exact"
    name: str
    environment: dict[str, str]
    num_same: int
    changed: tuple[ExactChange, ...]
    added: dict[str, Exact]
    gone: dict[str, Exact]

    @property
    def is_pass(self) -> bool:
        """Whether nothing differs."""
        return not (self.changed or self.added or self.gone)

    @property
    def exit_code(self) -> ExitCode:
        """Pass or fail: there is nothing between."""
        return ExitCode.PASS if self.is_pass else ExitCode.FAIL

    @property
    def message(self) -> str:
        """The verdict in one line, with what to do about it."""
        if self.is_pass:
            return f"pass: {self.name}: all {self.num_same:,} figures are as accepted"
        return (
            f"fail: {self.name}: {len(self.changed):,} figures changed, {len(self.added):,} added, "
            f"{len(self.gone):,} gone, {self.num_same:,} as accepted; if that is meant: "
            "dstune gate accept FILE, and commit the baseline with the change"
        )
