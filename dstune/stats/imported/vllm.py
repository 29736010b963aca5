"""Stats, imported: results of `vllm bench serve` (`--save-result`, `--append-result`).

| dstune | there |
|---|---|
| ttft | the same, but from the actual send: a late client is not counted |
| tpot | (last - first chunk) / (tokens - 1): the same where tokens come singly |
| itl | theirs is per chunk: taken of requests whose tokens came singly, so only from `itls` |
| e2e | `e2el`: until the last token, but from the actual send |
| output_tokens_per_s, requests_per_s | over all of the duration, ramp and drain included |
| num_failed | `failed`; older files: prompts - completed |

With `--save-detailed` latencies come from the raw arrays, else from the percentiles in the file,
which are numpy's, as dstune's are. dstune's own vllm_bench-*.json are read alike. `date` is when
a run was over, by the machine's clock in a zone that is not told: it is kept as it stands, without
a Z, so that runs of one machine can be put in order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from dstune.errors import UsageError
from dstune.measure.comparison import RunFigures
from dstune.stats.imported.chunks import latencies_of_chunks
from dstune.stats.imported.documents import Document
from dstune.stats.imported.run import (
    Count,
    ImportedRun,
    Part,
    Rate,
    digests,
    finite,
    latency_figures,
    mean_tokens,
    rates,
    read_part,
    told,
)

TOOL = "vllm bench serve"
_KEYS = {"duration", "completed", "total_output_tokens", "request_throughput",
         "total_token_throughput"}  # fmt: skip
_SUMMARY = re.compile(r"(median|mean|p(?P<percent>[\d.]+))_(?P<metric>ttft|tpot|e2el)_ms")
_METRICS = {"ttft": "ttft", "tpot": "tpot", "e2el": "e2e"}


class _Result(Part):
    duration: float
    completed: Count
    total_output_tokens: Count
    total_input_tokens: Count | None = None
    backend: str | None = None
    failed: Count | None = None
    num_prompts: Count | None = None
    date: str = ""
    model_id: str = ""
    request_rate: Rate = None
    burstiness: float | None = None
    max_concurrency: int | None = None
    ramp_up_strategy: str | None = None
    ramp_up_start_rps: float | None = None
    ramp_up_end_rps: float | None = None
    input_lens: list[Count] | None = None
    output_lens: list[Count] | None = None
    ttfts: list[float] | None = None
    itls: list[list[float]] | None = None


def is_vllm(document: Document) -> bool:
    """Whether a document is such a result."""
    return document.content.keys() >= _KEYS


def vllm_runs(documents: Sequence[Document]) -> list[ImportedRun]:
    """One run for each document; raises `UsageError` for one that is not whole."""
    return [_run(one) for one in documents]


def _run(document: Document) -> ImportedRun:
    result = read_part(_Result, document, TOOL)
    made = _made(result.date)
    return ImportedRun(
        figures=RunFigures(
            name=document.place,
            started_utc=f"{made:%Y-%m-%dT%H:%M:%S}" if made else "",
            num_ok=result.completed,
            num_failed=_failed(result, document),
            figures=_figures(result, document) if result.completed else {},
        ),
        place=document.place,
        model=result.model_id,
        settings=told(
            {
                "request_rate": result.request_rate,
                "concurrency": _concurrency(result, document),
                "num_prompts": result.num_prompts,
                "burstiness": result.burstiness,
                "backend": result.backend,
                "ramp_up_strategy": result.ramp_up_strategy,
                "ramp_up_start_rps": result.ramp_up_start_rps,
                "ramp_up_end_rps": result.ramp_up_end_rps,
            }
        ),
        digests=digests({"input_lens": result.input_lens, "output_lens": result.output_lens}),
        mean_tokens=mean_tokens(
            result.completed, result.total_input_tokens, result.total_output_tokens
        ),
        made=made.timestamp() if made else None,
    )


def _concurrency(result: _Result, document: Document) -> int | str | None:
    """The tool writes a null for as many at once as come."""
    is_told = "max_concurrency" in document.content
    return result.max_concurrency or ("unlimited" if is_told else None)


def _failed(result: _Result, document: Document) -> int:
    if result.failed is not None:
        return result.failed
    if result.num_prompts is None:
        raise UsageError(f"{document.place} does not tell how many requests failed")
    return max(result.num_prompts - result.completed, 0)


def _figures(result: _Result, document: Document) -> dict[str, float]:
    found = rates(result.completed, result.total_output_tokens, result.duration)
    if result.ttfts is None or result.itls is None or result.output_lens is None:
        return {**found, **summary_figures(document)}
    arrays = result.ttfts, result.itls, result.output_lens
    return {**found, **latency_figures(latencies_of_chunks(*arrays, document.place))}


def summary_figures(document: Document) -> dict[str, float]:
    """The percentiles that a file tells without its arrays; ITL is not among them."""
    found: dict[str, object] = {}
    for key, value in document.content.items():
        match = _SUMMARY.fullmatch(key)
        if match is not None:
            percent = "p50" if match[1] == "median" else match[1]
            found[f"{_METRICS[match['metric']]}_{percent}_ms"] = value
    return finite(found)


def _made(date: str) -> datetime | None:
    try:
        return datetime.strptime(date, "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return None
