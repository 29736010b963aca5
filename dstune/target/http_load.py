"""Target: a plan carried out over HTTP by the Locust processes, for every target that serves it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dstune.load.bodies import Asker
from dstune.load.client.command import locustfile_path
from dstune.load.locust_processes import LoadInterrupted, LocustProcesses
from dstune.load.plan import LoadPlan
from dstune.load.split import to_wire
from dstune.load.wire import WireResult
from dstune.measure.sample import Sample
from dstune.measure.server_metrics import ServerMetrics, read_metrics
from dstune.target import http
from dstune.target.target import Interrupted, LoadResult, Progress

COMPLETIONS = "/v1/completions"


@dataclass(frozen=True)
class Endpoint:
    """Where requests go, and what every one of them says."""

    url: str
    asker: Asker
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)


class HttpLoad:
    """The load side of a target: its Locust processes, started at the first plan and kept."""

    def __init__(self, num_processes: int, log_path: Path) -> None:
        self._num_processes = num_processes
        self._log_path = log_path
        self._processes: LocustProcesses | None = None

    def run(
        self, plan: LoadPlan, endpoint: Endpoint, progress: Progress | None = None
    ) -> LoadResult:
        """Carries out a plan; raises `Interrupted` with what was measured on Ctrl-C."""
        if self._processes is None:
            locustfile = locustfile_path("batch" if plan.concurrency is None else "chat")
            self._processes = LocustProcesses(locustfile, self._num_processes, self._log_path)
        shares = to_wire(
            plan,
            endpoint.asker,
            url=endpoint.url,
            path=COMPLETIONS,
            headers=dict(endpoint.headers),
            num_processes=self._num_processes,
        )
        before = metrics_of(endpoint)
        try:
            results = self._processes.run(shares, progress)
        except LoadInterrupted as interrupt:
            results = interrupt.results
            raise Interrupted(_measured(plan, results, before, metrics_of(endpoint))) from None
        return _measured(plan, results, before, metrics_of(endpoint))

    def stop(self) -> None:
        """Ends the load processes; harmless when called twice."""
        processes, self._processes = self._processes, None
        if processes is not None:
            processes.stop()


def metrics_of(endpoint: Endpoint) -> ServerMetrics | None:
    """What the server says of itself; None where it has no `/metrics` that can be read."""
    with contextlib.suppress(http.NoAnswer, ValueError):
        answer = http.get(endpoint.url + "/metrics", endpoint.headers)
        if answer.status == 200:
            return read_metrics(answer.text)
    return None


def _measured(
    plan: LoadPlan,
    results: list[WireResult],
    before: ServerMetrics | None,
    after: ServerMetrics | None,
) -> LoadResult:
    """The samples of all processes in the plan's order, and the server's word where it has any."""
    by_id = {one.request_id: one for result in results for one in result.samples}
    samples = [by_id[one.request_id] for one in plan.requests if one.request_id in by_id]
    return LoadResult(
        started_ns=min(one.started_ns for one in results),
        finished_ns=max(one.finished_ns for one in results),
        samples=tuple(samples),
        clients=tuple(one.health for one in results),
        server_metrics=None if before is None or after is None else (before, after),
    )


def stamped(result: LoadResult, precision: str, backend: str) -> LoadResult:
    """The same result, its samples saying what ran where the server did not."""

    def stamp(sample: Sample) -> Sample:
        return dataclasses.replace(
            sample, precision=sample.precision or precision, backend=sample.backend or backend
        )

    return dataclasses.replace(result, samples=tuple(map(stamp, result.samples)))
