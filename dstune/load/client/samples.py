"""Load client: what became of a request, as the row that is kept. Pure."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from dstune.load.client.exchange import Outcome
from dstune.load.wire import WireRequest
from dstune.measure.sample import Sample, SampleError, Status

NS_PER_MS = 1e6


def sample(process: int, request: WireRequest, outcome: Outcome) -> Sample:
    """The sample of one request; what belongs to trial and repetition is the parent's to fill."""
    common = _identity(process, request)
    answer = outcome.answer
    if answer is None or outcome.sent_ns is None:
        return Sample(
            **common,
            status=outcome.verdict.status,
            error=outcome.verdict.error,
            http_status=None,
            intended_ns=outcome.intended_ns,
            sent_ns=outcome.sent_ns,
            first_token_ns=None,
            last_token_ns=None,
            done_ns=outcome.done_ns,
            prompt_tokens=request.prompt_tokens,
        )
    reader = answer.reader
    chunks = reader.chunks()
    stamps = chunks.stamps_ns
    usage, told = reader.usage, reader.told
    prompt_tokens = None if usage is None else usage.prompt_tokens
    return Sample(
        **common,
        status=outcome.verdict.status,
        error=outcome.verdict.error,
        http_status=answer.http_status,
        intended_ns=outcome.intended_ns,
        sent_ns=outcome.sent_ns,
        first_token_ns=stamps[0] if stamps else None,
        last_token_ns=stamps[-1] if stamps else None,
        done_ns=outcome.done_ns,
        chunk_offsets_ns=[stamp - outcome.sent_ns for stamp in stamps],
        chunk_tokens=chunks.tokens,
        prompt_tokens=request.prompt_tokens if prompt_tokens is None else prompt_tokens,
        output_tokens=chunks.output_tokens,
        token_source=chunks.token_source,
        cached_tokens=None if usage is None else usage.cached_tokens,
        queue_ns=None if told is None else told.queue_ns,
        precision="" if told is None else told.precision,
        backend="" if told is None else told.backend,
    )


def unsent(process: int, request: WireRequest, intended_ns: int) -> Sample:
    """The sample of a request that was planned and never begun."""
    return Sample(
        **_identity(process, request),
        status=Status.UNSENT,
        error=SampleError.STOPPED,
        http_status=None,
        intended_ns=intended_ns,
        sent_ns=None,
        first_token_ns=None,
        last_token_ns=None,
        done_ns=None,
        prompt_tokens=request.prompt_tokens,
    )


def _identity(process: int, request: WireRequest) -> dict[str, Any]:
    return {
        "request_id": request.request_id,
        "trial_id": "",
        "repetition": 0,
        "process": process,
        "session_id": request.session_id,
        "turn": request.turn,
        "kind": request.kind,
    }


def ttft_ms(row: Sample) -> float | None:
    """For live display alone: verdicts use `stats/metrics.py`, on the rows."""
    return _between(row.intended_ns, row.first_token_ns)


def e2e_ms(row: Sample) -> float | None:
    """For live display alone, as `ttft_ms`."""
    return _between(row.intended_ns, row.last_token_ns)


def itls_ms(row: Sample) -> list[float]:
    """For live display alone, as `ttft_ms`; empty when a chunk carried several tokens."""
    if any(tokens != 1 for tokens in row.chunk_tokens):
        return []
    return [(b - a) / 1e6 for a, b in pairwise(row.chunk_offsets_ns)]


def tpot_ms(row: Sample) -> float | None:
    """For live display alone, as `ttft_ms`."""
    span = _between(row.first_token_ns, row.last_token_ns)
    following = row.output_tokens - row.chunk_tokens[0] if row.chunk_tokens else 0
    return span / following if span is not None and following > 0 else None


def _between(start_ns: int | None, end_ns: int | None) -> float | None:
    return None if start_ns is None or end_ns is None else (end_ns - start_ns) / NS_PER_MS
