"""Stats, imported: what is read of GuideLLM's report, by its own keys."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from dstune.stats.imported.run import Count, Part, UnixTime


class Totals(Part):
    """Requests by how they ended."""

    successful: Count
    errored: Count = 0


class Distribution(Part):
    """A metric's summary."""

    total_sum: float | None = None
    percentiles: dict[str, float] = Field(default_factory=dict)


class ByStatus(Part):
    """A metric of the requests that ended ok."""

    successful: Distribution


class Metrics(Part):
    """The summaries that are used."""

    request_totals: Totals
    output_token_count: ByStatus
    time_to_first_token_ms: ByStatus


class Timings(Part):
    """Unix times, in seconds."""

    request_start: UnixTime | None = None
    last_token_iteration: UnixTime | None = None


class Info(Part):
    """What became of a request."""

    timings: Timings = Timings()


class Request(Part):
    """One request."""

    info: Info = Info()
    prompt_tokens: Count | None = None
    output_tokens: Count | None = None
    time_to_first_token_ms: float | None = None
    inter_token_latency_ms: float | None = None


class Requests(Part):
    """The requests that are listed, which need not be all."""

    successful: list[Request] = Field(default_factory=list)


class Scheduler(Part):
    """When was measured: unix times."""

    measure_start_time: UnixTime
    measure_end_time: UnixTime


class Backend(Part):
    """What was asked."""

    model: str | None = None


class Config(Part):
    """How it was asked."""

    strategy: dict[str, Any] = Field(default_factory=dict)
    backend: Backend = Backend()


class Benchmark(Part):
    """One run."""

    config: Config = Config()
    scheduler_metrics: Scheduler
    metrics: Metrics
    requests: Requests = Requests()


class Arguments(Part):
    """The command line."""

    model: str | None = None
    max_requests: Any = None
    max_seconds: Any = None
    data: Any = None


class Report(Part):
    """A whole file."""

    args: Arguments = Arguments()
    benchmarks: list[Benchmark]
