"""Stats, imported: results of SGLang's bench_serving with `--output-details`, a line per run.

| dstune | there |
|---|---|
| ttft | the same, but from the actual send |
| tpot | (last - first chunk) / (tokens - 1): the same where tokens come singly |
| itl | left out: theirs spreads the gap before a chunk evenly over the chunk's tokens |
| e2e | until the last token, but from the actual send |
| output_tokens_per_s, requests_per_s | over all of the duration, ramp and drain included |
| num_failed | listed - completed; without `--output-details` failures are not told: refused |

A line tells neither when it was made nor, without the server's word, of which model.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    latency_figures,
    rates,
    read_part,
    told,
)

TOOL = "sglang bench_serving"
_KEYS = {"duration", "completed", "total_output_tokens", "total_output_tokens_retokenized"}


class _ServerInfo(Part):
    model_path: str = ""


class _Result(Part):
    duration: float
    completed: Count
    total_output_tokens: Count
    server_info: _ServerInfo | None = None
    dataset_name: str | None = None
    request_rate: Rate = None
    max_concurrency: int | None = None
    sharegpt_output_len: int | None = None
    random_input_len: int | None = None
    random_output_len: int | None = None
    random_range_ratio: float | None = None
    input_lens: list[Count] | None = None
    output_lens: list[Count] | None = None
    ttfts: list[float] | None = None
    itls: list[list[float]] | None = None


def is_sglang(document: Document) -> bool:
    """Whether a document is such a result."""
    return document.content.keys() >= _KEYS


def sglang_runs(documents: Sequence[Document]) -> list[ImportedRun]:
    """One run for each line; raises `UsageError` for one without the details."""
    return [_run(one) for one in documents]


def _run(document: Document) -> ImportedRun:
    result = read_part(_Result, document, TOOL)
    if result.ttfts is None or result.itls is None or result.output_lens is None:
        raise UsageError(
            f"{document.place} does not tell how many requests failed: run bench_serving again "
            "with --output-details"
        )
    latencies = latencies_of_chunks(result.ttfts, result.itls, result.output_lens, document.place)
    del latencies["itl"]
    figures = rates(result.completed, result.total_output_tokens, result.duration)
    return ImportedRun(
        figures=RunFigures(
            name=document.place,
            started_utc="",
            num_ok=result.completed,
            num_failed=max(len(result.output_lens) - result.completed, 0),
            figures={**figures, **latency_figures(latencies)} if result.completed else {},
        ),
        place=document.place,
        model=result.server_info.model_path if result.server_info else "",
        settings=told(
            {
                "request_rate": result.request_rate,
                "concurrency": result.max_concurrency,
                "num_prompts": len(result.output_lens),
                "dataset_name": result.dataset_name,
                "sharegpt_output_len": result.sharegpt_output_len,
                "random_input_len": result.random_input_len,
                "random_output_len": result.random_output_len,
                "random_range_ratio": result.random_range_ratio,
            }
        ),
        digests=digests({"input_lens": result.input_lens, "output_lens": result.output_lens}),
    )
