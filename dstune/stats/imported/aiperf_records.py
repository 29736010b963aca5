"""Stats, imported: AIPerf's records, a line per request, made into the figures of their run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from dstune.errors import UsageError
from dstune.stats.imported.documents import Document
from dstune.stats.imported.run import Part, digests, latency_figures, number, read_part

TOOL = "aiperf"
_IN_S = {"ms": 1e-3, "sec": 1.0, "s": 1.0, "us": 1e-6, "ns": 1e-9}


UnixNs = Annotated[int, Field(ge=0, le=4 * 10**18)]


@dataclass(frozen=True)
class Records:
    """What the records of one run come to."""

    num_ok: int
    num_failed: int
    output_tokens: float
    duration_s: float  # from the first send to the last answer
    made: float | None  # unix time of the first send
    figures: dict[str, float]
    digests: dict[str, str]


class _Metadata(Part):
    request_start_ns: UnixNs
    request_end_ns: UnixNs
    benchmark_phase: str = "profiling"
    was_cancelled: bool = False


class _Value(Part):
    value: Any
    unit: str


class _Request(Part):
    metadata: _Metadata
    metrics: dict[str, _Value] = Field(default_factory=dict)
    error: dict[str, Any] | None = None


def of_records(documents: Sequence[Document]) -> Records:
    """One run's records; raises `UsageError` for one that is not whole."""
    pairs = [(read_part(_Request, one, TOOL), one) for one in documents]
    pairs = [(request, one) for request, one in pairs
             if request.metadata.benchmark_phase == "profiling"]  # fmt: skip
    done = [(request, one) for request, one in pairs if request.error is None]
    lost = [request for request, _ in pairs
            if request.error is not None and not request.metadata.was_cancelled]  # fmt: skip
    seconds: dict[str, list[float]] = {"ttft": [], "tpot": [], "itl": [], "e2e": []}
    lengths: dict[str, list[float]] = {"input_lens": [], "output_lens": []}
    for request, document in done:
        _add(request, document, seconds)
        for name, metric in (("input_lens", "input_sequence_length"),
                             ("output_lens", "output_sequence_length")):  # fmt: skip
            if metric in request.metrics:
                lengths[name].append(_numbers(request.metrics[metric], document)[0])
    starts = [request.metadata.request_start_ns for request, _ in done]
    ends = [request.metadata.request_end_ns for request, _ in done]
    return Records(
        num_ok=len(done),
        num_failed=len(lost),
        output_tokens=sum(lengths["output_lens"]),
        duration_s=(max(ends) - min(starts)) / 1e9 if done else 0.0,
        made=min(starts) / 1e9 if done else None,
        figures=latency_figures(seconds),
        digests=digests({name: one for name, one in lengths.items() if len(one) == len(done)}),
    )


def _add(request: _Request, document: Document, seconds: dict[str, list[float]]) -> None:
    for ours, theirs in (("ttft", "time_to_first_token"), ("tpot", "inter_token_latency"),
                         ("e2e", "request_latency")):  # fmt: skip
        if theirs in request.metrics:
            seconds[ours] += _seconds(request.metrics[theirs], document)
    gaps, tokens = (request.metrics.get(one)
                    for one in ("inter_chunk_latency", "output_sequence_length"))  # fmt: skip
    if gaps is not None and tokens is not None:
        values = _seconds(gaps, document)
        if len(values) == _numbers(tokens, document)[0] - 1:  # tokens came singly
            seconds["itl"] += values


def _seconds(metric: _Value, document: Document) -> list[float]:
    if metric.unit not in _IN_S:
        raise UsageError(f"{document.place}: a latency is in {metric.unit}, not a time")
    return [_IN_S[metric.unit] * one for one in _numbers(metric, document)]


def _numbers(metric: _Value, document: Document) -> list[float]:
    values = metric.value if isinstance(metric.value, list) else [metric.value]
    found = [one for one in map(number, values) if one is not None]
    if not found or len(found) < len(values):
        raise UsageError(f"{document.place} is no whole result of {TOOL}: {metric.value!r:.40}")
    return found
