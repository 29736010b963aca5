"""The reader of event streams, held against the standard and against torn and odd input."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_answers import DONE, Script, closing, event, token_event, tokens

from dstune.load.sse import MAX_EVENT_BYTES, Fault, Reader, spread_tokens


def read(*pieces: bytes) -> Reader:
    """Pieces received at 1, 2, 3, ... ns."""
    reader = Reader()
    for stamp, piece in enumerate(pieces, 1):
        reader.feed(stamp, piece)
    reader.end(len(pieces))
    return reader


def text(content: str | None, **more: object) -> bytes:
    return event({"choices": [{"index": 0, "text": content, **more}]})


STREAM = b"".join(data for _, data in tokens(Script(tokens=5), (" é", "😀", " a\n"))) + b"".join(
    closing(Script(tokens=5))
)


def facts(reader: Reader) -> tuple[object, ...]:
    chunks = reader.chunks()
    usage = reader.usage
    return (
        reader.fault,
        reader.finish_reason,
        reader.is_done,
        reader.num_events,
        usage and usage.completion_tokens,
        chunks.tokens,
        chunks.token_source,
    )


def test_a_stream_event_by_event_has_its_stamps() -> None:
    reader = read(text("a"), text(""), text(None), text("b"), text("c", finish_reason="stop"), DONE)
    assert reader.chunks().stamps_ns == [1, 4, 5]
    assert (reader.finish_reason, reader.is_done, reader.num_events) == ("stop", True, 6)
    assert reader.chunks().token_source == "chunks"


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 10_000])
def test_it_reads_the_same_however_it_is_cut_and_whatever_ends_its_lines(
    end: bytes, size: int
) -> None:
    stream = STREAM.replace(b"\n", end)
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert facts(read(*pieces)) == facts(read(STREAM))
    assert facts(read(STREAM))[:4] == (Fault.NONE, "length", True, 8)


@given(st.lists(st.integers(1, len(STREAM) - 1), max_size=12), st.sampled_from([b"\n", b"\r\n"]))
def test_it_reads_the_same_cut_anywhere(cuts: list[int], end: bytes) -> None:
    stream = STREAM.replace(b"\n", end)
    edges = [0, *sorted(cuts), len(stream)]
    pieces = [stream[a:b] for a, b in pairwise(edges)]
    assert facts(read(*pieces)) == facts(read(STREAM))


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_no_bytes_at_all_make_it_raise(pieces: list[bytes]) -> None:
    chunks = read(*pieces).chunks()
    assert sum(chunks.tokens) == chunks.output_tokens


def test_the_stamp_is_of_the_last_byte_of_the_event() -> None:
    one = text("é")
    reader = read(one[:20], one[20:-1], one[-1:], text("b"))
    assert reader.chunks().stamps_ns == [3, 4]


def test_events_that_come_together_have_one_stamp() -> None:
    assert read(text("a") + text("b"), text("c")).chunks().stamps_ns == [1, 1, 2]


@pytest.mark.parametrize(
    "stream",
    [
        b"\xef\xbb\xbf" + text("a"),  # a byte order mark
        b": hello\n\n:\n" + text("a"),
        b"retry: 10\nid: 7\nevent: message\n" + text("a"),
        text("a").replace(b"data: ", b"data:"),
        text("a").replace(b'"choices"', b'\ndata: "choices"'),
        b"data:\n\ndata\n\n" + text("a"),
        text("a")[:-1],  # no blank line at the very end
        text("a")[:-2],
        b"\n\n\n" + text("a"),
        b"unknown: field\n" + text("a"),
    ],
)
def test_what_the_standard_allows(stream: bytes) -> None:
    for pieces in ([stream], [stream[i : i + 1] for i in range(len(stream))]):
        reader = read(*pieces)
        assert reader.fault is Fault.NONE
        assert (reader.num_events, reader.chunks().tokens) == (1, [1])


def test_done_without_a_blank_line() -> None:
    assert read(text("a"), b"data: [DONE]").is_done
    assert read(text("a"), b"data:[DONE]\n").is_done
    assert not read(text("a"), b"data: [DON").is_done


@pytest.mark.parametrize(
    ("stream", "fault"),
    [
        (b"<html><body>no</body></html>", Fault.MALFORMED),
        (b"hello", Fault.MALFORMED),
        (b"data: {\n\n", Fault.MALFORMED),
        (b"data: hello\n\n", Fault.MALFORMED),
        (b"data: []\n\n", Fault.MALFORMED),
        (b'data: {"choices": 3}\n\n', Fault.MALFORMED),
        (b'data: {"choices": [{"text": "\xff"}]}\n\n', Fault.MALFORMED),
        (event({"error": {"message": "no"}}), Fault.ERROR_EVENT),
        (event({"error": "no"}), Fault.ERROR_EVENT),
        (event({"object": "error", "message": "no"}), Fault.ERROR_EVENT),
        (b"event: error\ndata: no\n\n", Fault.ERROR_EVENT),
        (text("a", finish_reason="error"), Fault.ERROR_EVENT),
        (event({"error": None, "choices": []}), Fault.NONE),
        (b"", Fault.NONE),
        (text("a") + b"data: {", Fault.NONE),  # merely torn
    ],
)
def test_faults(stream: bytes, fault: Fault) -> None:
    assert read(stream).fault is fault


def test_the_first_fault_counts_and_later_tokens_are_still_read() -> None:
    reader = read(b"data: {\n\n", event({"error": "no"}), text("a"))
    assert (reader.fault, reader.num_chunks) == (Fault.MALFORMED, 1)


def test_a_line_without_an_end_is_given_up_at_a_bound() -> None:
    reader = Reader()
    piece = b"data: " + b"x" * (1 << 20)
    for stamp in range((MAX_EVENT_BYTES >> 20) + 2):
        reader.feed(stamp, piece)
    assert reader.fault is Fault.MALFORMED


@pytest.mark.parametrize(
    ("delta", "is_token"),
    [
        ({"content": "a"}, True),
        ({"reasoning_content": "a"}, True),
        ({"reasoning": "a"}, True),
        ({"refusal": "a"}, True),
        ({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}, True),
        ({"role": "assistant", "content": ""}, False),
        ({"role": "assistant"}, False),
        ({"content": None, "tool_calls": None, "reasoning": None}, False),
        ({"tool_calls": []}, False),
        ({}, False),
    ],
)
def test_which_deltas_are_tokens(delta: dict[str, object], is_token: bool) -> None:
    reader = read(event({"choices": [{"index": 0, "delta": delta}]}))
    assert reader.num_chunks == is_token


def usage(count: int | None) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": count}})


def ids(*counts: int, content: str = "a") -> list[bytes]:
    return [text(content if n else "held", token_ids=list(range(n))) for n in counts]


@pytest.mark.parametrize(
    ("stream", "counts", "source"),
    [
        # token_ids are exact
        ([*ids(1, 4, 2), usage(7)], [1, 4, 2], "usage"),
        (ids(1, 4, 2), [1, 4, 2], "tokenizer"),
        # text that was held back, its tokens told before; and a token that shows no text
        ([*ids(2), text("b", token_ids=[]), *ids(1), usage(3)], [2, 1], "usage"),
        ([text("", token_ids=[5]), *ids(1), usage(2)], [1, 1], "usage"),
        # usage counts a stop token that was never sent, or less than was sent
        ([*ids(1, 1), usage(3)], [1, 1], "tokenizer"),
        ([*ids(1, 3), usage(2)], [1, 3], "tokenizer"),
        # none: a chunk is a token
        ([text("a"), text("bc"), usage(2)], [1, 1], "usage"),
        ([text("a"), text("bc")], [1, 1], "chunks"),
        ([text("a"), text("bc"), usage(None)], [1, 1], "chunks"),
        ([text("a"), text("bc"), usage(0)], [1, 1], "chunks"),
        # usage says more, or fewer
        ([text("a"), text("b" * 9), usage(6)], [1, 5], "usage"),
        ([text("aaaa"), text("bbbb"), text("cccc"), usage(12)], [4, 4, 4], "usage"),
        ([text("a"), text("b"), text("c"), usage(2)], [1, 1], "usage"),
        ([text("a"), text("b"), text("c"), usage(1)], [1], "usage"),
        ([usage(0)], [], "usage"),
        ([], [], "chunks"),
    ],
)
def test_tokens_of_chunks(stream: list[bytes], counts: list[int], source: str) -> None:
    chunks = read(*stream).chunks()
    assert (chunks.tokens, chunks.token_source) == (counts, source)
    assert len(chunks.stamps_ns) == len(counts) and chunks.output_tokens == sum(counts)


def test_fewer_tokens_than_chunks_keep_the_first_and_the_last_time() -> None:
    chunks = read(*(text("a") for _ in range(9)), usage(4)).chunks()
    assert (chunks.stamps_ns[0], chunks.stamps_ns[-1]) == (1, 9)
    assert chunks.tokens == [1, 1, 1, 1]


@given(st.integers(1, 500), st.lists(st.integers(0, 300), min_size=1, max_size=60))
def test_spreading_sums_exactly(total: int, lengths: list[int]) -> None:
    counts = spread_tokens(total, lengths)
    assert sum(counts) == total and len(counts) == len(lengths)
    assert counts[0] >= 1 and min(counts) >= (1 if total >= len(lengths) else 0)
    assert total == 1 or counts[-1] >= 1


def test_several_choices_of_one_event_are_counted_together() -> None:
    both = event({"choices": [{"index": i, "text": "a", "token_ids": [1, 2]} for i in (0, 1)]})
    assert read(both).chunks().tokens == [4]


def test_an_answer_in_one_piece() -> None:
    reader = Reader()
    message = {"message": {"role": "assistant", "content": "hello you"}, "finish_reason": "stop"}
    body = {"choices": [message], "usage": {"prompt_tokens": 4, "completion_tokens": 5}}
    reader.feed_whole(9, json.dumps(body, indent=2).encode())
    chunks = reader.chunks()
    assert (chunks.stamps_ns, chunks.tokens, reader.finish_reason) == ([9], [5], "stop")


def test_what_the_server_tells() -> None:
    script = Script(tokens=1)
    reader = read(token_event(script, "a", 0), *closing(script))
    assert reader.usage is not None and reader.told is not None
    assert (reader.usage.prompt_tokens, reader.usage.cached_tokens) == (7, 3)
    assert (reader.told.queue_ns, reader.told.precision) == (1_000_000, "fp32")
