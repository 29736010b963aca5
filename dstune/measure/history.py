"""Measure: a figure over earlier runs, as types. `gate` collects it, `report` shows it."""

from __future__ import annotations

from typing import Literal

from dstune.knobs import KnobValue
from dstune.measure.record import Estimate, Record


class HistoryRow(Record):
    """One session's value of the figure."""

    name: str
    verb: str  # sweep, loadtest, gate or baseline; of imported results the tool
    started_utc: str
    revision: str | None  # of dstune; None where it is not known
    configuration: dict[str, KnobValue]  # where it differs from the defaults
    value: Estimate  # geometric mean over its runs, 95% interval; none for a single run
    num_runs: int
    is_accepted: bool  # a committed baseline
    doubt: str = ""  # why it does not count; then no change point rests on it
    is_change: bool = False  # the level is another one from here on


class HistoryGroup(Record):
    """Sessions that can be compared, oldest first."""

    profile: str  # empty where the source does not tell, like the others
    model: str
    precision: str
    kv_cache_dtype: str
    load: str  # in words
    host: str  # digest of the machine
    machine: str  # in words
    rows: tuple[HistoryRow, ...]
    note: str = ""  # why no change of level was looked for


class SkippedRun(Record):
    """What could not be read, and why."""

    name: str
    reason: str


class History(Record):
    """A figure over all that was measured."""

    schema_version: Literal[1] = 1
    metric: str
    groups: tuple[HistoryGroup, ...]
    skipped: tuple[SkippedRun, ...]
