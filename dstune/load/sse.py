"""Load: an event stream's bytes and their stamps become chunks of tokens. Pure: no clock, no I/O.

The wire format is the WHATWG standard of server-sent events (CR, LF or CRLF, comments, fields
with and without a space, data over several lines, events split anywhere), the content is OpenAI's
of completions and chat completions. Two deviations on purpose: a last event that lacks its blank
line counts where it is whole JSON or [DONE], since sloppy servers end so; and other fields than
`data` are ignored but for `event: error`.
"""

from __future__ import annotations

from array import array
from enum import StrEnum
from typing import Any

import msgspec

MAX_EVENT_BYTES = 16 << 20  # a line or event that grows past this is no event stream
_BOM = b"\xef\xbb\xbf"
_FINISHED_ODDLY = "error"


class Fault(StrEnum):
    """What made an answer none; the first one counts."""

    NONE = ""
    ERROR_EVENT = "error_event"
    MALFORMED = "malformed"


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: Any = None

    def length(self) -> int:
        """How much text it adds, under whichever name."""
        text = self.content or self.reasoning_content or self.reasoning or self.refusal
        if text:
            return len(text)
        return len(str(self.tool_calls)) if self.tool_calls else 0


class _Choice(msgspec.Struct, gc=False):
    text: str | None = None
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class Usage(msgspec.Struct, gc=False):
    """What the server says that the request cost."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = 0
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that came from the prefix cache; None when not told."""
        details = self.prompt_tokens_details
        return None if details is None else details.cached_tokens


class Told(msgspec.Struct, gc=False):
    """What dstune's own server adds."""

    queue_ns: int | None = None
    precision: str = ""
    backend: str = ""


class _Event(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: Any = None
    object: str | None = ""
    dstune: Told | None = None


_decode = msgspec.json.Decoder(_Event).decode


class Chunks(msgspec.Struct, frozen=True):
    """The chunks that carried tokens; `tokens` sums to `output_tokens`."""

    stamps_ns: list[int]
    tokens: list[int]
    output_tokens: int
    token_source: str  # as `Sample.token_source`


class Reader:
    """Reads one answer's body; `feed` as it comes, `end` once.

    After `end`, `fault`, `finish_reason`, `is_done` ([DONE] seen), `usage`, `told` and
    `num_events` say what came, and `chunks` what carried tokens.
    """

    __slots__ = (
        "_after_cr",
        "_data",
        "_has_begun",
        "_is_error",
        "_is_inside",
        "_lengths",
        "_rest",
        "_size",
        "_stamps",
        "_tokens",
        "fault",
        "finish_reason",
        "is_done",
        "num_events",
        "told",
        "usage",
    )

    def __init__(self) -> None:
        self.fault = Fault.NONE
        self.finish_reason: str | None = None
        self.is_done = False
        self.usage: Usage | None = None
        self.told: Told | None = None
        self.num_events = 0
        self._stamps: array[int] = array("q")
        self._tokens: array[int] = array("l")  # by token_ids; 0 where there were none
        self._lengths: array[int] = array("l")
        self._rest = b""  # a line without its end
        self._data: list[bytes] = []  # data lines of the event that is not over yet
        self._size = 0
        self._after_cr = False
        self._has_begun = False
        self._is_error = False
        self._is_inside = True  # of a line, of an event, or before the first byte

    @property
    def num_chunks(self) -> int:
        """Chunks with tokens so far."""
        return len(self._stamps)

    def feed(self, stamp_ns: int, data: bytes) -> None:
        """Takes bytes that were received at `stamp_ns`; an event has the stamp of its last byte."""
        # one event in one piece, as nearly every server sends it: JSON allows blanks at its end
        if data.endswith(b"}\n\n") and data.startswith(b"data: {") and not self._is_inside:
            try:
                event = _decode(data[6:])
            except msgspec.DecodeError:
                pass  # several events, or none: line by line
            else:
                self._take_event(stamp_ns, event)
                return
        self._feed_lines(stamp_ns, data)
        self._is_inside = bool(
            self._rest or self._data or self._after_cr or self._is_error or not self._has_begun
        )

    def feed_whole(self, stamp_ns: int, body: bytes) -> None:
        """Takes a body that is one JSON object, not streamed: a single chunk."""
        self._dispatch(stamp_ns, body)

    def end(self, stamp_ns: int) -> None:
        """The body ended; a last event without its blank line is taken if it is whole."""
        if self._rest:
            self._line(stamp_ns, self._rest)
            self._rest = b""
        if self._data and not self.fault:
            self._blank(stamp_ns)
            if self.fault == Fault.MALFORMED:  # merely torn: how the body ended says the rest
                self.fault = Fault.NONE
                self.num_events -= 1

    def _feed_lines(self, stamp_ns: int, data: bytes) -> None:
        if not self._has_begun:
            data = self._rest + data
            self._rest = b""
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._rest = data
                return
            self._has_begun = True
            data = data.removeprefix(_BOM)
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if not data:
            return
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in data:
            self._hold(data)
            return
        first, *lines = data.split(b"\n")
        self._line(stamp_ns, self._rest + first)
        self._rest = lines.pop()
        for line in lines:
            self._line(stamp_ns, line)
        self._hold(b"")

    def _hold(self, data: bytes) -> None:
        self._rest += data
        if len(self._rest) + self._size > MAX_EVENT_BYTES:
            self._blame(Fault.MALFORMED)
            self._rest, self._data, self._size = b"", [], 0

    def _line(self, stamp_ns: int, line: bytes) -> None:
        if not line:
            self._blank(stamp_ns)
            return
        name, colon, value = line.partition(b":")
        if name == b"data":
            value = value.removeprefix(b" ")
            self._data.append(value)
            self._size += len(value)
        elif name == b"event":
            self._is_error = value.strip() == b"error"
        elif name in (b"", b"id", b"retry"):
            pass  # comments, and fields for browsers that reconnect
        elif not colon and not self.num_events and not self._data:
            self._blame(Fault.MALFORMED)  # text that never was an event stream

    def _blank(self, stamp_ns: int) -> None:
        data, self._data, self._size = self._data, [], 0
        is_error, self._is_error = self._is_error, False
        if is_error:
            self.num_events += 1
            self._blame(Fault.ERROR_EVENT)
        elif data:
            self._dispatch(stamp_ns, data[0] if len(data) == 1 else b"\n".join(data))

    def _dispatch(self, stamp_ns: int, data: bytes) -> None:
        if data.startswith(b"[DONE]"):
            self.num_events += 1
            self.is_done = True
            return
        if not data or self.is_done:
            return
        try:
            event = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.num_events += 1
            self._blame(Fault.MALFORMED)
            return
        self._take_event(stamp_ns, event)

    def _take_event(self, stamp_ns: int, event: _Event) -> None:
        self.num_events += 1
        if event.error is not None or event.object == "error":
            self._blame(Fault.ERROR_EVENT)
            return
        choices = event.choices
        if choices:
            tokens = length = 0
            for choice in choices:
                if choice.token_ids:
                    tokens += len(choice.token_ids)
                if choice.text:
                    length += len(choice.text)
                elif choice.delta is not None:
                    length += choice.delta.length()
                elif choice.message is not None:
                    length += choice.message.length()
                if choice.finish_reason is not None:
                    self._finish(choice.finish_reason)
            if tokens or length:
                self._stamps.append(stamp_ns)
                self._tokens.append(tokens)
                self._lengths.append(length)
        if event.usage is not None:
            self.usage = event.usage
            if event.dstune is not None:
                self.told = event.dstune

    def _finish(self, reason: str) -> None:
        self.finish_reason = reason or self.finish_reason
        if reason == _FINISHED_ODDLY:
            self._blame(Fault.ERROR_EVENT)

    def _blame(self, fault: Fault) -> None:
        if self.fault is Fault.NONE:
            self.fault = fault

    def chunks(self) -> Chunks:
        """Chunks and their tokens.

        A chunk's `token_ids` count exactly, and are believed against a different `usage` (which
        may count tokens that are never sent, as the one that stops). Without them a chunk is one
        token; where `usage` counts otherwise, its tokens are spread over the chunks by the length
        of their text, at least one to the first and the last: an estimate that sums exactly.
        """
        stamps, tokens = self._stamps.tolist(), self._tokens.tolist()
        told = None if self.usage is None else self.usage.completion_tokens
        if not stamps:
            return Chunks(stamps, tokens, 0, "usage" if told == 0 else "chunks")
        if any(tokens) and (told is None or told <= sum(tokens) or all(tokens)):
            counted = _counted(stamps, tokens)
            is_told = told == counted.output_tokens
            return msgspec.structs.replace(counted, token_source="usage") if is_told else counted
        if told == len(stamps):
            return Chunks(stamps, [1] * told, told, "usage")
        if not told:
            return Chunks(stamps, [1] * len(stamps), len(stamps), "chunks")
        spread = spread_tokens(told, self._lengths.tolist())
        kept = [(stamp, count) for stamp, count in zip(stamps, spread, strict=True) if count]
        return Chunks([one[0] for one in kept], [one[1] for one in kept], told, "usage")


def _counted(stamps: list[int], tokens: list[int]) -> Chunks:
    # text without ids beside chunks that have them was held back: its tokens came before
    kept = [(stamp, count) for stamp, count in zip(stamps, tokens, strict=True) if count]
    return Chunks([one[0] for one in kept], [one[1] for one in kept], sum(tokens), "tokenizer")


def spread_tokens(total: int, lengths: list[int]) -> list[int]:
    """`total` tokens (> 0) over chunks in proportion to their text, summing exactly.

    With enough tokens every chunk gets one first; with too few, the first and the last do.
    """
    count = len(lengths)
    counts = [1] * count
    if total < count:
        counts = [0] * count
        counts[0] = 1
        if total > 1:
            counts[-1] = 1
    left = total - sum(counts)
    weights = [max(length - 1, 0) for length in lengths] if total >= count else [1] * count
    if total < count:
        weights[0] = weights[-1] = 0
    whole = sum(weights)
    if not whole:
        weights, whole = [1] * count, count
    seen = given = 0
    for index, weight in enumerate(weights):
        seen += weight
        now = left * seen // whole
        counts[index] += now - given
        given = now
    return counts
