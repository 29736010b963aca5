"""Text to token ids and back, for prompts, chats and streams.

User text cannot forge structure: what spells a control token (`<|im_end|>`) is encoded as the
ordinary characters it is made of, in plain prompts and inside chat messages alike. A token counts
as control when the tokenizer flags it special, or when it is spelled like one, `<|...|>` (also
with DeepSeek's full-width bars), which is llama.cpp's rule too: DeepSeek leaves its
`<|User|>` unflagged.
"""

from __future__ import annotations

import codecs
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders

from dstune.errors import ModelError, UsageError
from dstune.model.chat_template import ChatTemplate
from dstune.model.reason import one_line

CONTROL_SPELLING = re.compile("<[|\uff5c].*[|\uff5c]>", re.DOTALL)
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def _byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: a printable character for each byte (openai/gpt-2, encoder.py)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}


BYTE_OF_CHARACTER = _byte_of_character()


class Tokenizer:
    """A model's tokenizer with its end tokens and its chat template.

    Safe to share between threads: nothing changes after construction.
    """

    def __init__(
        self,
        core: tokenizers.Tokenizer,
        *,
        chat_template: str | None = None,
        eos_ids: Iterable[int] = (),
        bos_id: int | None = None,
        source: str = "tokenizer",
    ) -> None:
        # a published tokenizer.json may truncate or pad, which a server must not
        core.no_truncation()
        core.no_padding()
        added = core.get_added_tokens_decoder()
        core.add_special_tokens(
            [_as_special(token) for token in added.values() if _is_control(token)]
        )
        self._core = core
        # the same tokenizer, blind to control tokens
        self._plain = tokenizers.Tokenizer.from_str(core.to_str())
        self._plain.encode_special_tokens = True
        self._control = {index: token for index, token in added.items() if _is_control(token)}
        self._source = source
        self.special_ids = frozenset(self._control)
        self.vocab_size = max(core.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.eos_ids = tuple(dict.fromkeys(eos_ids))
        self.bos_id = bos_id
        self.has_byte_pieces = isinstance(core.decoder, decoders.ByteLevel)
        self._check_ids()
        self._template_text = chat_template
        self._template = self._compile(chat_template)

    @classmethod
    def from_file(
        cls,
        path: Path,
        *,
        chat_template: str | None = None,
        eos_ids: Iterable[int] = (),
        bos_id: int | None = None,
        eos_token: str | None = None,
        bos_token: str | None = None,
    ) -> Tokenizer:
        """Read a tokenizer.json; end tokens named by text are added to those named by id."""
        try:
            core = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ModelError(f"{path}: {error.strerror or one_line(error)}") from None
        except Exception as error:  # tokenizers raises bare Exception
            raise ModelError(f"{path}: not a tokenizer: {one_line(error)}") from None
        ids = [*eos_ids]
        eos = core.token_to_id(eos_token) if eos_token else None
        if eos is not None:
            ids.append(eos)
        if bos_id is None and bos_token:
            bos_id = core.token_to_id(bos_token)
        return cls(core, chat_template=chat_template, eos_ids=ids, bos_id=bos_id, source=str(path))

    @classmethod
    def from_parts(cls, parts: Mapping[str, Any]) -> Tokenizer:
        """The tokenizer that `to_parts` described, perhaps in another process."""
        core = tokenizers.Tokenizer.from_str(parts["core"])
        return cls(core, **{name: parts[name] for name in parts if name != "core"})

    def to_parts(self) -> dict[str, Any]:
        """All that it is made of, as JSON can carry it."""
        return {
            "core": self._core.to_str(),
            "chat_template": self._template_text,
            "eos_ids": list(self.eos_ids),
            "bos_id": self.bos_id,
            "source": self._source,
        }

    @property
    def has_chat_template(self) -> bool:
        """Whether chats can be rendered."""
        return self._template is not None

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Token ids of a prompt, with the begin token where the model's tokenizer adds one.

        `parse_special` turns text that spells a control token into that token. Bytes that the
        vocabulary has no token for are left out, as the model saw it in training.
        """
        core = self._core if parse_special else self._plain
        return _encode(core, text, add_special_tokens=True)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of token ids; broken UTF-8 shows as U+FFFD, ids beyond the vocabulary as ''."""
        kept = [index for index in ids if not (skip_special and index in self.special_ids)]
        return self._core.decode(kept, skip_special_tokens=False)

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True
    ) -> list[int]:
        """Token ids of a chat, laid out by the model's own template.

        Control tokens that the template writes are tokens; the same text inside a message is not.
        The template never sees such text: it is exchanged for a placeholder before rendering and
        put back afterwards, in the pieces between control tokens. So the template may trim, split
        and test the content as it likes. Raises `ModelError` without a template, `UsageError` for
        messages that it refuses.
        """
        if self._template is None:
            raise ModelError(f"{self._source}: it has no chat template; send a plain prompt")
        hidden = _Placeholders(self._control.values())
        safe = [hidden.hide(message) for message in messages]
        rendered = self._template.render(safe, add_generation_prompt)
        if not hidden.originals:
            # all there is comes from the template
            return _encode(self._core, rendered, add_special_tokens=False)
        ids: list[int] = []
        for is_control, piece in hidden.split(rendered):
            core = self._core if is_control else self._plain
            ids += _encode(core, hidden.restore(piece), add_special_tokens=False)
        return ids

    def piece(self, index: int) -> bytes:
        """The bytes that one token of a byte-level vocabulary stands for."""
        text = self._core.id_to_token(index)
        if text is None:
            return b""
        try:
            return bytes([BYTE_OF_CHARACTER[character] for character in text])
        except KeyError:  # an added token is written as it is
            return text.encode()

    def spelling(self, index: int) -> bytes:
        """The bytes that one token stands for, by itself."""
        if self.has_byte_pieces:
            return self.piece(index)
        return self.decode([index], skip_special=False).encode()

    def detokenizer(self, skip_special: bool = True) -> Detokenizer:
        """A fresh detokenizer for one stream."""
        return Detokenizer(self, skip_special)

    def _check_ids(self) -> None:
        for index in (*self.eos_ids, *(() if self.bos_id is None else (self.bos_id,))):
            if not 0 <= index < self.vocab_size:
                raise ModelError(
                    f"{self._source}: token {index} is named begin or end, "
                    f"but there are {self.vocab_size}"
                )

    def _compile(self, template: str | None) -> ChatTemplate | None:
        if template is None:
            return None
        bos = None if self.bos_id is None else self._core.id_to_token(self.bos_id)
        eos = self._core.id_to_token(self.eos_ids[0]) if self.eos_ids else None
        return ChatTemplate(template, bos_token=bos or "", eos_token=eos or "", source=self._source)


class Detokenizer:
    """Turns one stream of tokens into text that is never half a character.

    Fed every token and flushed, the pieces add up to `decode` of all of them. (With SentencePiece's
    byte fallback that holds for valid text: one broken byte voids its whole run there, characters
    included that a stream has shown long ago.)
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special else frozenset()
        self.reset()

    def reset(self) -> None:
        """Forget everything, for a new stream."""
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._window: list[int] = []  # tokens whose text depends on each other
        self._shown = 0  # how many of the window's tokens are out

    def push(self, index: int) -> str:
        """The text that this token completes, '' while a character is unfinished."""
        if index in self._skipped:
            return ""
        if self._tokenizer.has_byte_pieces:
            return self._utf8.decode(self._tokenizer.piece(index))
        self._window.append(index)
        before, after = self._texts()
        # an unfinished character shows as U+FFFD at the end
        if len(after) <= len(before) or after.endswith(REPLACEMENT):
            return ""
        self._window = self._window[self._shown :]
        self._shown = len(self._window)
        return after[len(before) :]

    def flush(self) -> str:
        """What is held back, with U+FFFD for characters that never ended; then start anew."""
        if self._tokenizer.has_byte_pieces:
            rest = self._utf8.decode(b"", final=True)
        else:
            before, after = self._texts()
            rest = after[len(before) :]
        self.reset()
        return rest

    def _texts(self) -> tuple[str, str]:
        """Text of the window's tokens that are out, and of all of them.

        SentencePiece drops the space before the first word, so a token is decoded behind the one
        before it, and the difference is what it adds.
        """
        shown = self._tokenizer.decode(self._window[: self._shown], skip_special=False)
        return shown, self._tokenizer.decode(self._window, skip_special=False)


class _Placeholders:
    """Exchanges control-token text in messages for placeholders, and back.

    A placeholder is a number between Unicode noncharacters, with digits that nobody can guess, so
    that no message can hold one. It has no letters, so that `upper` leaves it alone.
    """

    def __init__(self, control: Iterable[AddedToken]) -> None:
        # the longest first, as the tokenizer matches; (?!) matches nothing
        tokens = sorted(control, key=lambda token: len(token.content), reverse=True)
        self._spelling = re.compile("|".join(re.escape(one.content) for one in tokens) or "(?!)")
        self._token = re.compile("|".join(map(_with_swallowed_space, tokens)) or "(?!)")
        self._key = f"\ufdd0{secrets.randbelow(10**12)}."
        self._placeholder = re.compile(rf"{re.escape(self._key)}(\d+)\ufdd1")
        self.originals: list[str] = []

    def hide(self, value: Any) -> Any:
        """The same value with every text in it made safe."""
        if isinstance(value, str):
            return self._spelling.sub(self._replace, value)
        if isinstance(value, Mapping):
            return {key: self.hide(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(one) for one in value]
        return value

    def _replace(self, match: re.Match[str]) -> str:
        self.originals.append(match[0])
        return f"{self._key}{len(self.originals) - 1}\ufdd1"

    def split(self, rendered: str) -> Iterator[tuple[bool, str]]:
        """(is it a control token, text) piece by piece."""
        position = 0
        for match in self._token.finditer(rendered):
            yield False, rendered[position : match.start()]
            yield True, match[0]
            position = match.end()
        yield False, rendered[position:]

    def restore(self, piece: str) -> str:
        """The text with the originals put back."""
        return self._placeholder.sub(lambda match: self.originals[int(match[1])], piece)


def _is_control(token: AddedToken) -> bool:
    return bool(token.special or CONTROL_SPELLING.fullmatch(token.content))


def _with_swallowed_space(token: AddedToken) -> str:
    """An expression for a control token and the white space beside it that it takes in."""
    before, behind = (r"\s*" if flag else "" for flag in (token.lstrip, token.rstrip))
    return before + re.escape(token.content) + behind


def _as_special(token: AddedToken) -> AddedToken:
    return AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=True,
    )


def _encode(core: tokenizers.Tokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the text holds a lone surrogate at character {error.start}, which is not Unicode text"
        ) from None
    ids: list[int] = core.encode(text, add_special_tokens=add_special_tokens).ids
    return ids
