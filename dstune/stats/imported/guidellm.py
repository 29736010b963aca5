"""Stats, imported: GuideLLM's benchmarks JSON, a run for each benchmark in it.

| dstune | there |
|---|---|
| ttft | `time_to_first_token_ms`: the same, but from the actual send |
| tpot | `inter_token_latency_ms` of a request: (last - first) / (tokens - 1). Not their |
| | `time_per_output_token_ms`, which counts the first token in |
| itl | left out: single gaps are not kept |
| e2e | last token - actual send; their `request_latency` goes on until the response closes |
| output_tokens_per_s, requests_per_s | tokens and requests / the measured time; not their means |
| | of rates, which begin with the first answer |
| num_failed | `errored`; `incomplete` ones were cut by the benchmark's own end: neither |

Where the requests are not all listed (`--sample-requests`, warm-up, cool-down) TTFT comes from the
summary, whose percentiles are samples, not interpolated; its ITL is weighted by tokens, so TPOT is
left out, and E2E likewise.
"""

from __future__ import annotations

from collections.abc import Sequence

from dstune.measure.comparison import RunFigures
from dstune.stats.figures import PERCENTS
from dstune.stats.imported.documents import Document
from dstune.stats.imported.guidellm_report import Arguments, Benchmark, Report, Request
from dstune.stats.imported.run import (
    ImportedRun,
    digests,
    finite,
    latency_figures,
    rates,
    read_part,
    told,
    utc,
)

TOOL = "guidellm"


def is_guidellm(document: Document) -> bool:
    """Whether a document is such a report."""
    listed = document.content.get("benchmarks")
    return isinstance(listed, list) and any(
        isinstance(one, dict) and {"metrics", "scheduler_metrics"} <= one.keys() for one in listed
    )


def guidellm_runs(documents: Sequence[Document]) -> list[ImportedRun]:
    """One run for each benchmark; raises `UsageError` for a report that is not whole."""
    found = []
    for document in documents:
        report = read_part(Report, document, TOOL)
        for at, one in enumerate(report.benchmarks, 1):
            several = f", benchmark {at}" if len(report.benchmarks) > 1 else ""
            found.append(_run(one, report.args, f"{document.place}{several}"))
    return found


def _run(one: Benchmark, args: Arguments, place: str) -> ImportedRun:
    totals, start_s = one.metrics.request_totals, one.scheduler_metrics.measure_start_time
    strategy = one.config.strategy
    concurrency = strategy.get("streams", strategy.get("max_concurrency"))
    return ImportedRun(
        figures=RunFigures(
            name=place,
            started_utc=utc(start_s),
            num_ok=totals.successful,
            num_failed=totals.errored,
            figures=_figures(one) if totals.successful else {},
        ),
        place=place,
        model=one.config.backend.model or args.model or "",
        settings=told(
            {
                "strategy": strategy.get("type_"),
                "request_rate": strategy.get("rate"),
                "concurrency": concurrency,
                "num_prompts": args.max_requests,
                "max_seconds": args.max_seconds,
                "data": args.data,
            }
        ),
        digests=_digests(one) if _lists_all(one) else {},
        made=start_s,
    )


def _lists_all(one: Benchmark) -> bool:
    return len(one.requests.successful) == one.metrics.request_totals.successful


def _figures(one: Benchmark) -> dict[str, float]:
    metrics, scheduler = one.metrics, one.scheduler_metrics
    duration_s = scheduler.measure_end_time - scheduler.measure_start_time
    tokens = metrics.output_token_count.successful.total_sum
    found = rates(metrics.request_totals.successful, tokens or 0, duration_s)
    if tokens is None:
        found.pop("output_tokens_per_s", None)
    if not _lists_all(one):
        told_ms = metrics.time_to_first_token_ms.successful.percentiles
        ttft = {f"ttft_p{one:g}_ms": told_ms.get(f"p{one:g}") for one in PERCENTS}
        return {**found, **finite(ttft)}
    return {**found, **latency_figures(_latencies_s(one.requests.successful))}


def _latencies_s(requests: Sequence[Request]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"ttft": [], "tpot": [], "e2e": []}
    for one in requests:
        start, last = one.info.timings.request_start, one.info.timings.last_token_iteration
        if one.time_to_first_token_ms is not None:
            found["ttft"].append(one.time_to_first_token_ms / 1e3)
        if one.inter_token_latency_ms:  # 0: all tokens came in one chunk, nothing followed it
            found["tpot"].append(one.inter_token_latency_ms / 1e3)
        if start is not None and last is not None:
            found["e2e"].append(last - start)
    return found


def _digests(one: Benchmark) -> dict[str, str]:
    listed = one.requests.successful
    told_in = [each.prompt_tokens for each in listed if each.prompt_tokens is not None]
    told_out = [each.output_tokens for each in listed if each.output_tokens is not None]
    lengths = {"input_lens": told_in, "output_lens": told_out}
    return digests({name: one for name, one in lengths.items() if len(one) == len(listed)})
