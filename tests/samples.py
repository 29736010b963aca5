"""Samples by hand, for tests: times in milliseconds after the start."""

from __future__ import annotations

from collections.abc import Sequence

from dstune.measure.sample import Sample, SampleError, Status


def sample(
    intended_ms: float = 0,
    sent_ms: float | None = None,
    tokens_ms: Sequence[float] = (),
    chunks: Sequence[int] | None = None,
    status: Status = Status.OK,
    kind: str = "normal",
) -> Sample:
    """One request whose chunks came at `tokens_ms` and carried `chunks` tokens each."""
    sent = intended_ms if sent_ms is None else sent_ms
    counts = list(chunks) if chunks is not None else [1] * len(tokens_ms)

    def ns(value_ms: float) -> int:
        return round(value_ms * 1e6)

    return Sample(
        request_id="r", trial_id="t", repetition=0, process=0, session_id="", turn=0, kind=kind,
        status=status, error=SampleError.NONE if status is Status.OK else SampleError.INTERNAL,
        http_status=None, intended_ns=ns(intended_ms), sent_ns=ns(sent),
        first_token_ns=ns(tokens_ms[0]) if tokens_ms else None,
        last_token_ns=ns(tokens_ms[-1]) if tokens_ms else None,
        done_ns=ns(tokens_ms[-1] if tokens_ms else sent + 1),
        chunk_offsets_ns=[ns(one - sent) for one in tokens_ms], chunk_tokens=counts,
        prompt_tokens=10, output_tokens=sum(counts),
    )  # fmt: skip
