"""Answers as bytes: server-sent events with one chunk per token, and whole JSON documents.

A chunk is put together from parts that are made once per request; only the text, and what a
client asked for beside it, is encoded per token.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dstune.server.http.ask import Ask
from dstune.server.http.choice import (
    Piece,
    TokenLogprobs,
    chat_logprobs,
    completion_logprobs,
)

DONE = b"data: [DONE]\n\n"
EVENT, EVENT_END = b"data: ", b"\n\n"

_encode = msgspec.json.Encoder().encode


class Names:
    """What every chunk and document of one answer repeats."""

    def __init__(self, answer_id: str, created: int, model: str) -> None:
        self.answer_id = answer_id
        self.created = created
        self.model = model

    def head(self, kind: str) -> dict[str, Any]:
        """The first fields of a document of that kind."""
        return {
            "id": self.answer_id, "object": kind, "created": self.created, "model": self.model,
        }  # fmt: skip


class ChunkWriter:
    """Makes the chunks of one stream."""

    def __init__(self, names: Names, ask: Ask, num_choices: int) -> None:
        self._is_chat = ask.is_chat
        self._with_ids = ask.return_token_ids
        kind = "chat.completion.chunk" if ask.is_chat else "text_completion"
        self._head = names.head(kind)
        begin = EVENT + _encode(self._head)[:-1] + b',"choices":[{"index":'
        opening = b',"delta":{"content":' if ask.is_chat else b',"text":'
        self._begins = [b"%s%d%s" % (begin, index, opening) for index in range(num_choices)]
        usage = b',"usage":null' if ask.include_usage else b""
        self._behind_text = b"}" if ask.is_chat else b""
        self._end = b"}]" + usage + b"}" + EVENT_END
        # the usual chunk has no logprobs and is not the last
        self._plain_end = self._behind_text + b',"logprobs":null,"finish_reason":null' + self._end
        self._has_plain_end = ask.num_logprobs is None and not ask.return_token_ids
        self._roles = [
            b'%s%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null%s'
            % (begin, index, self._end)
            for index in range(num_choices)
        ]

    def role(self, choice: int) -> bytes:
        """The chunk with which a chat's choice begins; it stands for no token."""
        return self._roles[choice]

    def chunk(self, piece: Piece) -> bytes:
        """The chunk of one token."""
        begin = self._begins[piece.choice] + _encode(piece.text)
        if self._has_plain_end and piece.finish_reason is None:
            return begin + self._plain_end
        parts = [begin, self._behind_text]
        if self._with_ids:
            parts.append(b',"token_ids":[%d]' % piece.token_id)
        logprobs = b"null"
        if piece.logprobs is not None:
            logprobs = _encode(_shaped(self._is_chat, [piece.logprobs]))
        parts += [b',"logprobs":', logprobs, b',"finish_reason":', _encode(piece.finish_reason)]
        parts.append(self._end)
        return b"".join(parts)

    def usage(self, usage: dict[str, Any], extras: dict[str, Any]) -> bytes:
        """The chunk behind the last token's, without choices."""
        document = {**self._head, "choices": [], "usage": usage, "dstune": extras}
        return EVENT + _encode(document) + EVENT_END


class WholeAnswer:
    """Collects the pieces of an answer that is sent as one document."""

    def __init__(self, names: Names, ask: Ask, num_choices: int) -> None:
        self._names = names
        self._ask = ask
        self._pieces: list[list[Piece]] = [[] for _ in range(num_choices)]

    def add(self, piece: Piece) -> None:
        """Takes one piece."""
        self._pieces[piece.choice].append(piece)

    def document(self, usage: dict[str, Any], extras: dict[str, Any]) -> bytes:
        """The answer."""
        kind = "chat.completion" if self._ask.is_chat else "text_completion"
        choices = [self._choice(index, pieces) for index, pieces in enumerate(self._pieces)]
        head = self._names.head(kind)
        return _encode({**head, "choices": choices, "usage": usage, "dstune": extras})

    def _choice(self, index: int, pieces: list[Piece]) -> dict[str, Any]:
        text = "".join([piece.text for piece in pieces])
        made: dict[str, Any] = {"index": index}
        if self._ask.is_chat:
            made["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            made["text"] = text
        logprobs = [piece.logprobs for piece in pieces if piece.logprobs is not None]
        made["logprobs"] = _shaped(self._ask.is_chat, logprobs) if logprobs else None
        made["finish_reason"] = pieces[-1].finish_reason
        if self._ask.return_token_ids:
            made["token_ids"] = [piece.token_id for piece in pieces]
        return made


def _shaped(is_chat: bool, tokens: list[TokenLogprobs]) -> dict[str, Any]:
    return chat_logprobs(tokens) if is_chat else completion_logprobs(tokens)
