"""What the scripted server answers: every mode as bytes with the time at which each leaves.

Token `i` leaves `ttft + i * itl` after the request arrived. Odd modes keep that timing, so that a
client's figures can be held against it in all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

NS_PER_MS = 1_000_000
EARLY_NS = 3 * NS_PER_MS  # a split event's first half leaves so long before its second
EVENT_STREAM = "text/event-stream; charset=utf-8"
WORDS = (" the", " cat", " sat", " on", " a", " mat", " and", " slept")
WIDE_WORDS = (" é", " 😀", " 中文", " naïve")


class End(Enum):
    """What the server does after the last step."""

    KEEP = "keep"
    CLOSE = "close"
    RESET = "reset"
    HANG = "hang"
    FOREVER = "forever"  # the last step again and again, one `itl` apart


@dataclass(frozen=True)
class Script:
    """What one request asks for: its mode and its timing."""

    mode: str = "plain"
    ttft_ms: float = 50.0
    itl_ms: float = 10.0
    tokens: int = 64
    is_chat: bool = False
    has_usage: bool = True
    has_token_ids: bool = False

    def token_ns(self, index: int) -> int:
        """When a token leaves, after the arrival of the request."""
        return round((self.ttft_ms + index * self.itl_ms) * NS_PER_MS)


@dataclass(frozen=True)
class Answer:
    """Bytes by time after the arrival of the request."""

    steps: tuple[tuple[int, bytes], ...]
    end: End = End.KEEP
    repeat_ns: int = 0


def answer(script: Script) -> Answer:
    """The answer to a script; raises `KeyError` for a mode that does not exist."""
    return MODES[script.mode](script)


def head(status: int = 200, content_type: str = EVENT_STREAM, **headers: str) -> bytes:
    """Status line and headers."""
    lines = [f"HTTP/1.1 {status} Scripted", f"content-type: {content_type}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


CHUNKED_HEAD = head(transfer_encoding="chunked")
LAST_CHUNK = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value: object) -> bytes:
    """One event, raw UTF-8 inside its JSON."""
    return b"data: " + _json(value) + b"\n\n"


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def token_event(
    script: Script, text: str, first: int, count: int = 1, field: str = "content"
) -> bytes:
    """The event of `count` tokens, the first of them number `first`."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": None}
    if script.is_chat:
        choice["delta"] = {field: text}
    else:
        choice["text"] = text
    if script.has_token_ids:
        choice["token_ids"] = list(range(first, first + count))
    return event({"id": "scripted", "object": "chunk", "model": "scripted", "choices": [choice]})


def usage(script: Script) -> dict[str, Any]:
    """The usage object, with the extras that dstune's own server adds."""
    return {
        "prompt_tokens": 7,
        "completion_tokens": script.tokens,
        "total_tokens": 7 + script.tokens,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


def finish_event(script: Script) -> bytes:
    """The event that says why the answer ends."""
    empty: dict[str, Any] = {"delta": {}} if script.is_chat else {"text": ""}
    return event({"choices": [{"index": 0, **empty, "finish_reason": "length"}]})


def closing(script: Script, *, has_finish: bool = True, has_done: bool = True) -> list[bytes]:
    """The events after the last token."""
    events = [finish_event(script)] if has_finish else []
    if script.has_usage:
        told = {"queue_ns": 1_000_000, "precision": "fp32", "backend": "scripted"}
        events.append(event({"choices": [], "usage": usage(script), "dstune": told}))
    return events + ([DONE] if has_done else [])


def tokens(script: Script, words: tuple[str, ...] = WORDS) -> list[tuple[int, bytes]]:
    """One event per token, with its time."""
    return [
        (script.token_ns(index), token_event(script, words[index % len(words)], index))
        for index in range(script.tokens)
    ]


def stream(
    events: Iterable[tuple[int, bytes]], after: Iterable[bytes], end: End = End.KEEP
) -> Answer:
    """A chunked answer, one HTTP chunk per event; `after` leaves at once behind the last."""
    steps = [(at, chunk(data)) for at, data in events]
    last = steps[-1][0]
    tail = b"".join(chunk(one) for one in after) + (LAST_CHUNK if end is End.KEEP else b"")
    steps = [(steps[0][0], CHUNKED_HEAD + steps[0][1]), *steps[1:]]
    return Answer((*steps, (last, tail)) if tail else tuple(steps), end)


def whole(status: int, body: bytes, content_type: str, at_ns: int, **headers: str) -> Answer:
    """An answer with a Content-Length."""
    data = head(status, content_type, content_length=str(len(body)), **headers) + body
    return Answer(((at_ns, data),))


def refusal(status: int, message: str, **headers: str) -> Callable[[Script], Answer]:
    """An error answer with OpenAI's error object."""

    def make(script: Script) -> Answer:
        body = _json({"error": {"message": message, "type": "scripted", "code": status}})
        return whole(status, body, "application/json", NS_PER_MS, **headers)

    return make


def _plain(script: Script) -> Answer:
    return stream(tokens(script), closing(script))


def _grouped(size: int, *, only_first: bool) -> Callable[[Script], Answer]:
    """Chunks of several tokens; a chunk leaves when its last token is due, the first on time."""

    def make(script: Script) -> Answer:
        events, at = [], 0
        while at < script.tokens:
            count = min(size if at == 0 or not only_first else 1, script.tokens - at)
            when = script.token_ns(0) if at == 0 else script.token_ns(at + count - size)
            text = "".join(WORDS[(at + i) % len(WORDS)] for i in range(count))
            events.append((when, token_event(script, text, at, count)))
            at += count
        return stream(events, closing(script))

    return make


def _role_first(script: Script) -> Answer:
    role = event({"choices": [{"index": 0, "delta": {"role": "assistant"}}]})
    empty = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    early = [(script.token_ns(0) // 5, role), (script.token_ns(0) // 2, empty)]
    return stream([*early, *tokens(script)], closing(script))


def _reasoning(field: str) -> Callable[[Script], Answer]:
    """The first half of the tokens is reasoning."""

    def make(script: Script) -> Answer:
        events = [
            (script.token_ns(i), token_event(script, " hm", i, 1, field))
            for i in range(script.tokens // 2)
        ]
        return stream(events + tokens(script)[script.tokens // 2 :], closing(script))

    return make


def _error_event(script: Script) -> Answer:
    error = event({"error": {"message": "out of memory", "type": "server_error", "code": 500}})
    return stream(tokens(script)[: script.tokens // 2], [error, DONE])


def _without(*, has_finish: bool, has_done: bool) -> Callable[[Script], Answer]:
    def make(script: Script) -> Answer:
        return stream(tokens(script), closing(script, has_finish=has_finish, has_done=has_done))

    return make


def _split(cut: Callable[[bytes], int], words: tuple[str, ...]) -> Callable[[Script], Answer]:
    """Every event in two HTTP chunks, the first of them early."""

    def make(script: Script) -> Answer:
        events = []
        for at, data in tokens(script, words):
            here = cut(data)
            events += [(at - EARLY_NS, data[:here]), (at, data[here:])]
        return stream(events, closing(script))

    return make


def _inside_utf8(data: bytes) -> int:
    return next(i for i, byte in enumerate(data) if byte & 0xC0 == 0xC0) + 1


def _rewritten(change: Callable[[bytes], bytes]) -> Callable[[Script], Answer]:
    """Every event spelled in another way that the standard allows."""

    def make(script: Script) -> Answer:
        events = [(at, change(data)) for at, data in tokens(script)]
        return stream(events, [change(one) for one in closing(script)])

    return make


def _bad_json(script: Script) -> Answer:
    events = tokens(script)
    events[3] = (events[3][0], b'data: {"choices": [{"text": \n\n')
    return stream(events, closing(script))


def _cut_off(end: End) -> Callable[[Script], Answer]:
    def make(script: Script) -> Answer:
        return stream(tokens(script)[: script.tokens // 2], [], end)

    return make


def _forever(script: Script) -> Answer:
    steps = stream(tokens(script), [], End.FOREVER).steps
    return Answer(steps, End.FOREVER, round(script.itl_ms * NS_PER_MS))


def _until_closed(script: Script) -> Answer:
    """No length and no chunks: the answer ends with the connection."""
    first, *rest = tokens(script)
    tail = b"".join(closing(script))
    steps = ((first[0], head() + first[1]), *rest, (rest[-1][0], tail))
    return Answer(steps, End.CLOSE)


def _not_streamed(script: Script) -> Answer:
    text = "".join(WORDS[i % len(WORDS)] for i in range(script.tokens))
    content = {"message": {"role": "assistant", "content": text}}
    choice = {"index": 0, "finish_reason": "length"}
    choice |= content if script.is_chat else {"text": text}
    body = _json({"choices": [choice], "usage": usage(script)})
    return whole(200, body, "application/json", script.token_ns(script.tokens - 1))


def _torn_terminator(script: Script) -> Answer:
    """The end of the chunked body in two pieces, `0\\r\\n` and `\\r\\n`."""
    *steps, (at, tail) = _plain(script).steps
    return Answer((*steps, (at, tail[:-2]), (at + EARLY_NS, tail[-2:])))


MODES: dict[str, Callable[[Script], Answer]] = {
    "plain": _plain,
    "four_per_chunk": _grouped(4, only_first=False),
    "four_in_first": _grouped(4, only_first=True),
    "role_first": _role_first,
    "reasoning_content": _reasoning("reasoning_content"),
    "reasoning": _reasoning("reasoning"),
    "error_event": _error_event,
    "no_done": _without(has_finish=True, has_done=False),
    "no_finish_no_done": _without(has_finish=False, has_done=False),
    "split_utf8": _split(_inside_utf8, WIDE_WORDS),
    "split_event": _split(lambda data: len(data) // 2, WORDS),
    "split_blank_line": _split(lambda data: len(data) - 1, WORDS),
    "crlf": _rewritten(lambda data: data.replace(b"\n", b"\r\n")),
    "cr": _rewritten(lambda data: data.replace(b"\n", b"\r")),
    "no_space": _rewritten(lambda data: data.replace(b"data: ", b"data:")),
    "comments": _rewritten(lambda data: b": keep-alive\n\nevent: x\nid: 1\n" + data + b":\n\n"),
    "lines": _rewritten(lambda data: data.replace(b'"choices"', b'\ndata: "choices"')),
    "bad_json": _bad_json,
    "html": lambda script: whole(200, b"<html>hello</html>", "text/html", script.token_ns(0)),
    "garbage": lambda script: whole(200, b"hello there", EVENT_STREAM, script.token_ns(0)),
    "empty": lambda script: whole(200, b"", EVENT_STREAM, script.token_ns(0)),
    "no_tokens": lambda script: stream([(script.token_ns(0), finish_event(script))], [DONE]),
    "not_http": lambda script: Answer(((script.token_ns(0), b"SSH-2.0-hello\r\n"),), End.CLOSE),
    "bad_request": refusal(400, "temperature must be finite"),
    "prompt_too_long": refusal(400, "This model's maximum context length is 512 tokens"),
    "unauthorized": refusal(401, "no key"),
    "too_large": refusal(413, "body too large"),
    "rate_limited": refusal(429, "slow down", retry_after="1"),
    "server_error": refusal(500, "oops"),
    "queue_full": refusal(503, "queue is full", retry_after="2"),
    "past_deadline": refusal(504, "took too long"),
    "reset": _cut_off(End.RESET),
    "fin": _cut_off(End.CLOSE),
    "hang": _cut_off(End.HANG),
    "hang_after_done": lambda script: stream(tokens(script), closing(script), End.HANG),
    "forever": _forever,
    "until_closed": _until_closed,
    "not_streamed": _not_streamed,
    "torn_terminator": _torn_terminator,
    "then_closed": lambda script: Answer(_plain(script).steps, End.CLOSE),
    "one_per_connection": _plain,  # the server closes at the second request, without a word
}
"""Every mode by the name that a request's `script.mode` gives."""
