"""Stats, imported: AIPerf's profile_export_aiperf.json and profile_export.jsonl, a run for both.

| dstune | there |
|---|---|
| ttft | `time_to_first_token`: the same, but from the actual send |
| tpot | `inter_token_latency`, one per request: (last - first) / (tokens - 1) |
| itl | `inter_chunk_latency` is per chunk: taken of requests whose tokens came singly, so only |
| | from the records |
| e2e | `request_latency`: until the last token, but from the actual send |
| output_tokens_per_s, requests_per_s | over their benchmark's duration, ramp and drain included |
| num_failed | records with an error, those that AIPerf cancelled by itself apart |

Warm-up is left out, as by AIPerf. Records belong to the summary of the same folder whose name is
theirs with `_aiperf`, which is how AIPerf names them; without one, duration is from the first send
to the last answer, and neither model nor load are told. Percentiles are numpy's in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from pathlib import Path

from dstune.measure.comparison import RunFigures
from dstune.stats.imported.aiperf_records import of_records
from dstune.stats.imported.aiperf_summary import (
    COUNTS,
    TOOL,
    counts_of,
    latencies_of,
    rates_of,
    read_summary,
)
from dstune.stats.imported.documents import Document
from dstune.stats.imported.run import ImportedRun, rates, utc

__all__ = ["TOOL", "aiperf_runs", "is_aiperf"]


def is_aiperf(document: Document) -> bool:
    """Whether a document is a summary of AIPerf, or a record of one request."""
    return _is_record(document) or any(
        isinstance(block, dict) and {"unit", "avg"} <= block.keys()
        for block in map(document.content.get, COUNTS)
    )


def _is_record(document: Document) -> bool:
    metadata = document.content.get("metadata")
    is_one = isinstance(metadata, dict) and "request_start_ns" in metadata
    return is_one and "metrics" in document.content


def aiperf_runs(documents: Sequence[Document]) -> list[ImportedRun]:
    """One run for each summary, with its records, and for records without a summary."""
    records: dict[Path, list[Document]] = {}
    summaries: dict[Path, Document] = {}
    for one in documents:
        if _is_record(one):
            records.setdefault(one.path.with_suffix(""), []).append(one)
        else:
            summaries[one.path.with_name(one.path.stem.removesuffix("_aiperf"))] = one
    found = []
    for key in sorted({*records, *summaries}):
        summary, listed = summaries.get(key), records.get(key, [])
        found.append(_summarised(summary, listed) if summary else _recorded(listed))
    return found


def _recorded(listed: Sequence[Document]) -> ImportedRun:
    """A run of which there are records alone."""
    records = of_records(listed)
    place = str(listed[0].path)
    speed = rates(records.num_ok, records.output_tokens, records.duration_s)
    return ImportedRun(
        figures=RunFigures(
            name=place,
            started_utc=utc(records.made) if records.made is not None else "",
            num_ok=records.num_ok,
            num_failed=records.num_failed,
            figures={**speed, **records.figures},
        ),
        place=place,
        model="",
        digests=records.digests,
        made=records.made,
    )


def _summarised(summary: Document, listed: Sequence[Document]) -> ImportedRun:
    """A run of which there is a summary; what its records tell better comes from them."""
    top, records = read_summary(summary), of_records(listed) if listed else None
    num_ok, num_failed = counts_of(summary)
    if records is not None:
        num_ok, num_failed = records.num_ok, records.num_failed
    latencies = records.figures if records is not None else latencies_of(summary)
    started = top.started.astimezone(UTC) if top.started else None
    return ImportedRun(
        figures=RunFigures(
            name=summary.place,
            started_utc=f"{started:%Y-%m-%dT%H:%M:%SZ}" if started else "",
            num_ok=num_ok,
            num_failed=num_failed,
            figures={**rates_of(summary), **latencies} if num_ok else {},
        ),
        place=summary.place,
        model=top.model,
        settings=top.settings,
        digests=records.digests if records is not None else {},
        made=started.timestamp() if started else None,
    )
