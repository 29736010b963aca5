"""The verdict on one HTTP answer, as bytes that never went over a wire."""

from __future__ import annotations

from collections import deque

import pytest
from scripted_answers import MODES, Script, answer, head

from dstune.load.client.answer import Answer
from dstune.measure.sample import SampleError, Status

OK = Status.OK


def taken(data: bytes, size: int = 1 << 20, *, closed: bool | None = None) -> Answer:
    """`data` in pieces of `size`; `closed`: in order or not."""
    one = Answer()
    pieces = deque((i + 1, data[i : i + size]) for i in range(0, len(data), size))
    while pieces:
        one.take(pieces, 3)
    if closed is not None:
        one.close(in_order=closed)
    return one


def mode(name: str, tokens: int = 4) -> bytes:
    return b"".join(data for _, data in answer(Script(mode=name, tokens=tokens)).steps)


@pytest.mark.parametrize("name", sorted(MODES))
def test_the_verdict_is_the_same_however_the_bytes_are_cut(name: str) -> None:
    data = mode(name)
    whole = taken(data, closed=True)
    for size in (1, 2, 7, 100):
        torn = taken(data, size, closed=True)
        assert torn.verdict() == whole.verdict()
        assert torn.reader.chunks().tokens == whole.reader.chunks().tokens
        assert (torn.is_complete, torn.http_status) == (whole.is_complete, whole.http_status)


def body(data: bytes, content_type: str = "text/event-stream", status: int = 200) -> bytes:
    return head(status, content_type, content_length=str(len(data))) + data


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("This model's maximum context length is 512 tokens", SampleError.PROMPT_TOO_LONG),
        ("context_length_exceeded", SampleError.PROMPT_TOO_LONG),
        ("the prompt is too long: 900 tokens", SampleError.PROMPT_TOO_LONG),
        ("Input length (900) exceeds the limit", SampleError.PROMPT_TOO_LONG),
        ("prompt (900 tokens) is longer than max_model_len 512", SampleError.PROMPT_TOO_LONG),
        ("prompt must not be empty", SampleError.BAD_REQUEST),
        ("max_tokens is too large", SampleError.BAD_REQUEST),
        ("max_tokens=999 cannot be greater than max_model_len=512", SampleError.BAD_REQUEST),
        ("", SampleError.BAD_REQUEST),
    ],
)
def test_a_refusal_that_says_the_prompt_is_too_long(message: str, error: SampleError) -> None:
    for status in (400, 413, 422):
        verdict = taken(body(message.encode(), "application/json", status)).verdict()
        assert (verdict.status, verdict.error) == (Status.REJECTED, error)


@pytest.mark.parametrize(
    ("status", "ended", "error"),
    [
        (204, Status.FAILED, SampleError.MALFORMED),
        (302, Status.FAILED, SampleError.MALFORMED),
        (404, Status.REJECTED, SampleError.BAD_REQUEST),
        (403, Status.REJECTED, SampleError.UNAUTHORIZED),
        (429, Status.REJECTED, SampleError.RATE_LIMITED),
        (502, Status.FAILED, SampleError.SERVER_ERROR),
        (503, Status.REJECTED, SampleError.QUEUE_FULL),
        (504, Status.TIMEOUT, SampleError.DEADLINE),
    ],
)
def test_status_codes(status: int, ended: Status, error: SampleError) -> None:
    verdict = taken(body(b"", "text/plain", status)).verdict()
    assert (verdict.status, verdict.error) == (ended, error)


def test_a_refusal_counts_even_when_its_body_is_torn() -> None:
    torn = taken(body(b"x" * 100, status=503)[:-50], closed=False)
    assert torn.verdict().error is SampleError.QUEUE_FULL and not torn.is_complete


def test_100_continue_comes_before_the_answer() -> None:
    data = b"HTTP/1.1 100 Continue\r\n\r\n" + mode("plain")
    for size in (5, 1 << 20):
        one = taken(data, size)
        assert (one.http_status, one.verdict().status, one.is_complete) == (200, OK, True)


def test_when_the_connection_can_be_kept() -> None:
    assert taken(mode("plain")).can_reuse
    assert not taken(mode("plain"), closed=True).can_reuse
    assert not taken(mode("plain")[:-1]).can_reuse
    assert not taken(mode("plain") + b"more").can_reuse
    closing = mode("plain").replace(b"\r\n", b"\r\nconnection: close\r\n", 1)
    assert taken(closing).verdict().status is OK and not taken(closing).can_reuse


def test_what_json_is_when_it_was_not_streamed() -> None:
    def verdict(text: bytes) -> tuple[Status, SampleError]:
        found = taken(body(text, "application/json; charset=utf-8")).verdict()
        return found.status, found.error

    assert verdict(b'{"choices": [{"text": "a"}]}') == (OK, SampleError.NONE)
    assert verdict(b'{"choices": []}') == (Status.FAILED, SampleError.NO_TOKENS)
    assert verdict(b'{"error": "no"}') == (Status.FAILED, SampleError.ERROR_EVENT)
    assert verdict(b"{") == (Status.FAILED, SampleError.MALFORMED)
    assert verdict(b"") == (Status.FAILED, SampleError.NO_TOKENS)


def test_an_answer_that_never_began() -> None:
    assert taken(b"", closed=True).verdict().error is SampleError.RESET
    assert taken(b"HTTP/1.1 200", closed=True).verdict().error is SampleError.RESET
