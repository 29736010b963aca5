"""Stats, imported: AIPerf's summary of a run, by its own keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from dstune.errors import UsageError
from dstune.stats.imported.documents import Document
from dstune.stats.imported.run import Part, finite, number, read_part, told

TOOL = "aiperf"
COUNTS = ("request_count", "error_request_count")
_RATES = {
    "output_tokens_per_s": "output_token_throughput",
    "requests_per_s": "request_throughput",
}
_LATENCIES = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",
    "e2e": "request_latency",
}
_IN_MS = {"ms": 1.0, "sec": 1e3, "s": 1e3, "us": 1e-3, "ns": 1e-6}
_STATISTIC = re.compile(r"p\d+|avg")


class _Named(Part):
    name: str


class _Models(Part):
    items: list[_Named] = Field(default_factory=list)


class _Endpoint(Part):
    model_names: list[str] = Field(default_factory=list)


class _Config(Part):
    models: _Models = _Models()
    endpoint: _Endpoint = _Endpoint()  # it named the models in earlier versions
    phases: list[dict[str, Any]] = Field(default_factory=list)
    loadgen: dict[str, Any] = Field(default_factory=dict)  # in place of phases, likewise


class Summary(Part):
    """What a summary tells beside its metrics."""

    was_cancelled: bool | None = None
    start_time: datetime | None = None  # UTC, with or without saying so
    input_config: _Config = _Config()

    @property
    def started(self) -> datetime | None:
        """When the run began."""
        if self.start_time is None or self.start_time.tzinfo is not None:
            return self.start_time
        return self.start_time.replace(tzinfo=UTC)

    @property
    def model(self) -> str:
        """Every model that was asked, empty where none is told."""
        config = self.input_config
        names = [one.name for one in config.models.items] or config.endpoint.model_names
        return ", ".join(names)

    @property
    def settings(self) -> dict[str, Any]:
        """The load: all of a single phase that is measured, or the earlier versions' options."""
        config = self.input_config
        phases = [one for one in config.phases if not one.get("exclude_from_results")]
        load = phases[0] if len(phases) == 1 else config.loadgen
        ours = {
            "request_rate": load.get("request_rate", load.get("rate")),
            "concurrency": load.get("concurrency"),
            "num_prompts": load.get("request_count", load.get("requests")),
        }
        return told({**ours, "phases": phases or None})


def read_summary(document: Document) -> Summary:
    """A summary without its metrics; raises `UsageError` where it is not whole, or interrupted."""
    found = read_part(Summary, document, TOOL)
    if found.was_cancelled:
        raise UsageError(f"{document.place} is of a run that was interrupted: leave it out")
    return found


def counts_of(document: Document) -> tuple[int, int]:
    """Requests that ended ok, and that failed."""
    ok, failed = (max(round(_average(document, name) or 0), 0) for name in COUNTS)
    return ok, failed


def rates_of(document: Document) -> dict[str, float]:
    """Output tokens and requests per second."""
    return finite({ours: _average(document, theirs) for ours, theirs in _RATES.items()})


def latencies_of(document: Document) -> dict[str, float]:
    """Percentiles and means by dstune's names, in ms."""
    found: dict[str, float] = {}
    for ours, theirs in _LATENCIES.items():
        block: Mapping[str, Any] | Any = document.content.get(theirs)
        if not isinstance(block, dict):
            continue
        unit = block.get("unit")
        if not isinstance(unit, str) or unit not in _IN_MS:
            raise UsageError(f"{document.place}: {theirs} is in {unit}, which is no time")
        for name, value in block.items():
            one = number(value)
            if _STATISTIC.fullmatch(name) and one is not None:
                ending = "mean" if name == "avg" else name
                found[f"{ours}_{ending}_ms"] = _IN_MS[unit] * one
    return found


def _average(document: Document, name: str) -> float | None:
    block = document.content.get(name)
    return number(block.get("avg")) if isinstance(block, dict) else None
