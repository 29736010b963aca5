"""One choice of an answer in the making: the engine's tokens in, pieces of text out.

Streams and whole answers go through here alike, so that their texts are equal.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from dstune.model.tokenizer import Tokenizer
from dstune.server.http.ask import Ask
from dstune.server.http.flight import Token

LEAST_LOGPROB = -9999.0  # OpenAI's word for minus infinity, which JSON does not have


class Logprob(NamedTuple):
    """One token with its probability, as text; `spelling` is None without a tokenizer."""

    text: str
    spelling: bytes | None
    logprob: float


class TokenLogprobs(NamedTuple):
    """The chosen token, the likeliest ones, and where in the choice's text the token begins."""

    chosen: Logprob
    likeliest: list[Logprob]
    text_offset: int


class Piece(NamedTuple):
    """What one token adds to a choice; `text` is '' while it is held back."""

    choice: int
    token_id: int
    text: str
    logprobs: TokenLogprobs | None
    finish_reason: str | None


class Choice:
    """Detokenises one choice, looks for stop strings, and keeps what the usage needs."""

    def __init__(self, index: int, ask: Ask, tokenizer: Tokenizer | None) -> None:
        self.index = index
        self.num_tokens = 0
        self.num_cached_tokens = 0
        self.first_scheduled_ns: int | None = None
        self.first_token_ns: int | None = None
        self.last_token_ns = 0
        self.finish_reason: str | None = None
        self._tokenizer = tokenizer
        self._detokenizer = None if tokenizer is None else tokenizer.detokenizer()
        self._stops = StopStrings(ask.stop) if ask.stop else None
        self._has_logprobs = ask.num_logprobs is not None
        self._num_chars = 0  # decoded so far, held back or not
        self._echo = ""
        if ask.echo and tokenizer is not None:
            self._echo = tokenizer.decode(ask.prompts[index // ask.n])

    def push(self, token: Token) -> Piece:
        """The piece that a token adds; `finish_reason` tells when it was the last."""
        self.num_tokens += 1
        if self.first_token_ns is None:
            self.first_token_ns = token.at_ns
        self.last_token_ns = token.at_ns
        if token.first_scheduled_ns is not None:
            self.first_scheduled_ns = token.first_scheduled_ns
            self.num_cached_tokens = token.num_cached_tokens or 0
        offset = self._num_chars
        text, self.finish_reason = self._text(token)
        if self._echo:
            text, self._echo = self._echo + text, ""
        logprobs = self._logprobs(token, offset) if self._has_logprobs else None
        return Piece(self.index, token.token_id, text, logprobs, self.finish_reason)

    def _text(self, token: Token) -> tuple[str, str | None]:
        finish_reason = token.finish_reason
        if self._detokenizer is None:
            return "", finish_reason
        # the token that stopped the choice is no part of its text
        text = "" if finish_reason == "stop" else self._detokenizer.push(token.token_id)
        if finish_reason is not None:
            text += self._detokenizer.flush()
        self._num_chars += len(text)
        if self._stops is None:
            return text, finish_reason
        text, is_stopped = self._stops.push(text)
        if is_stopped:
            return text, "stop"
        if finish_reason is not None:
            text += self._stops.flush()
        return text, finish_reason

    def _logprobs(self, token: Token, offset: int) -> TokenLogprobs:
        likeliest = [self._named(*one) for one in token.top_logprobs or ()]
        return TokenLogprobs(self._named(token.token_id, token.logprob), likeliest, offset)

    def _named(self, token_id: int, logprob: float | None) -> Logprob:
        value = LEAST_LOGPROB if logprob is None else max(logprob, LEAST_LOGPROB)
        if self._tokenizer is None:
            return Logprob(f"token_id:{token_id}", None, value)
        spelling = self._tokenizer.spelling(token_id)
        return Logprob(spelling.decode("utf-8", "replace"), spelling, value)


class StopStrings:
    """Finds the stop string that ends first in a text that comes piece by piece.

    What might be a stop string's beginning is held back until it is known not to be, so how the
    text was cut into pieces never changes what comes out.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._longest = max(map(len, stops))
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """(text that is free to go, whether a stop string was found right behind it)."""
        if not text:
            return "", False
        text = self._held + text
        found = [
            (at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0
        ]  # fmt: skip
        if found:
            self._held = ""
            return text[: min(found)[1]], True
        kept = self._num_kept(text)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept], False

    def flush(self) -> str:
        """What is held back, at the end of the text."""
        held, self._held = self._held, ""
        return held

    def _num_kept(self, text: str) -> int:
        """Length of the longest end of the text with which a stop string begins."""
        for count in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-count:]
            if any(stop.startswith(end) for stop in self._stops):
                return count
        return 0


def completion_logprobs(tokens: list[TokenLogprobs]) -> dict[str, Any]:
    """The shape of `/v1/completions`."""
    return {
        "tokens": [one.chosen.text for one in tokens],
        "token_logprobs": [one.chosen.logprob for one in tokens],
        "top_logprobs": [_by_text(one) for one in tokens],
        "text_offset": [one.text_offset for one in tokens],
    }


def _by_text(token: TokenLogprobs) -> dict[str, float]:
    """The likeliest and the chosen; of tokens that look alike (broken bytes) the likeliest."""
    named: dict[str, float] = {}
    for one in (*token.likeliest, token.chosen):
        named[one.text] = max(one.logprob, named.get(one.text, one.logprob))
    return named


def chat_logprobs(tokens: list[TokenLogprobs]) -> dict[str, Any]:
    """The shape of `/v1/chat/completions`."""
    content = [
        {**_spelled(one.chosen), "top_logprobs": [_spelled(top) for top in one.likeliest]}
        for one in tokens
    ]
    return {"content": content, "refusal": None}


def _spelled(one: Logprob) -> dict[str, Any]:
    spelling = None if one.spelling is None else list(one.spelling)
    return {"token": one.text, "logprob": one.logprob, "bytes": spelling}
