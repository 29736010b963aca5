"""A request as the server understands it: everything resolved, checked and bounded.

From a body that the limits have let through to what the front hands to the engine. Whatever is
wrong with a body becomes a `Refusal` here; nothing behind this point can fail because of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dstune.errors import DstuneError
from dstune.model.tokenizer import Tokenizer
from dstune.server.http.messages import read_messages
from dstune.server.http.parameters import ChatFields, CompletionFields, Fields, read_fields
from dstune.server.http.refusal import (
    Refusal,
    bad_request,
    bad_value,
    model_not_found,
)
from dstune.server.http.strict_json import parse_object

MAX_PROMPTS = 16
COMPLETION_TOKENS = 16  # OpenAI's default; a chat may go on to the end of the context
SURELY_TOO_LONG = 1.25  # times the context; a cut end changes the few tokens beside it alone
BEGINNINGS = (2, 8)  # characters per token of the context that are looked at first
LONGEST_REASON = 200  # characters of a template's own complaint

TokenIds = tuple[int, ...]


@dataclass(frozen=True)
class ModelFacts:
    """What reading a request needs to know of the model that is served."""

    name: str
    max_model_len: int
    vocab_size: int
    tokenizer: Tokenizer | None
    created: int  # Unix time, for /v1/models


@dataclass(frozen=True)
class Ask:
    """What a client wants."""

    is_chat: bool
    prompts: tuple[TokenIds, ...]  # one for a chat; a completion may ask for a batch
    n: int  # choices per prompt
    max_tokens: int  # fits behind the longest prompt
    temperature: float
    top_k: int  # 0: off
    top_p: float
    min_p: float
    seed: int | None  # None: the server draws one
    stop: tuple[str, ...]
    stop_token_ids: TokenIds
    ignore_eos: bool
    num_logprobs: int | None  # None: off; 0: of the chosen token alone
    echo: bool
    stream: bool
    include_usage: bool
    return_token_ids: bool
    timeout_s: float | None  # None: the server's


def parse_completion(body: bytes, model: ModelFacts) -> Ask:
    """The body of `/v1/completions`; raises `Refusal`."""
    fields = read_fields(parse_object(body), CompletionFields)
    _check_model(fields, model)
    prompts = _prompts(fields.prompt, model)
    # the default ends with the context, where a number that was given must fit
    return _ask(fields, model, prompts, COMPLETION_TOKENS, fields.logprobs, fields.echo)


def parse_chat(body: bytes, model: ModelFacts) -> Ask:
    """The body of `/v1/chat/completions`; raises `Refusal`."""
    fields = read_fields(parse_object(body), ChatFields)
    _check_model(fields, model)
    if fields.top_logprobs is not None and not fields.logprobs:
        raise bad_value("top_logprobs", "needs logprobs: true")
    num_logprobs = (fields.top_logprobs or 0) if fields.logprobs else None
    prompt = _chat_prompt(read_messages(fields.messages), model)
    return _ask(fields, model, (prompt,), model.max_model_len, num_logprobs, False)


def _check_model(fields: Fields, model: ModelFacts) -> None:
    if fields.model != model.name:
        raise model_not_found(fields.model, model.name)


def _ask(
    fields: Fields,
    model: ModelFacts,
    prompts: tuple[TokenIds, ...],
    default_tokens: int,
    num_logprobs: int | None,
    echo: bool,
) -> Ask:
    is_chat = isinstance(fields, ChatFields)
    if echo and num_logprobs is not None:
        raise bad_value("echo", "is not supported together with logprobs")
    if fields.stream_options is not None and not fields.stream:
        raise bad_value("stream_options", "needs stream: true")
    where = "messages" if is_chat else "prompt"
    longest = max(map(len, prompts))
    return Ask(
        is_chat=is_chat,
        prompts=prompts,
        n=fields.n,
        max_tokens=_max_tokens(fields, longest, default_tokens, model, where),
        temperature=fields.temperature,
        top_k=max(fields.top_k, 0),
        top_p=fields.top_p,
        min_p=fields.min_p,
        seed=fields.seed,
        stop=_stop(fields, model),
        stop_token_ids=_checked_ids(fields.stop_token_ids, "stop_token_ids", model),
        ignore_eos=fields.ignore_eos,
        num_logprobs=num_logprobs,
        echo=echo,
        stream=fields.stream,
        include_usage=bool(fields.stream_options and fields.stream_options.include_usage),
        return_token_ids=fields.return_token_ids,
        timeout_s=fields.timeout_s,
    )


def _max_tokens(fields: Fields, longest: int, default: int, model: ModelFacts, where: str) -> int:
    limit = model.max_model_len
    room = limit - longest
    if room < 1:
        raise _prompt_too_long(str(longest), limit, where)
    old, new = fields.max_tokens, fields.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise bad_value("max_tokens", "and max_completion_tokens differ; give one of them")
    given = new if old is None else old
    if given is None:
        return min(default, room)
    if given > room:
        name = "max_completion_tokens" if old is None else "max_tokens"
        raise _too_long(
            f"{name} may be {room} at most: the model's maximum context length is {limit} tokens, "
            f"of which the prompt takes {longest}",
            name,
        )
    return given


def _prompt_too_long(length: str, limit: int, param: str) -> Refusal:
    return _too_long(
        f"the prompt is {length} tokens long; with at least one more for the answer it may be "
        f"{limit - 1} (the model's maximum context length is {limit} tokens)",
        param,
    )


def _too_long(message: str, param: str) -> Refusal:
    return bad_request(message, param, "context_length_exceeded")


def _stop(fields: Fields, model: ModelFacts) -> tuple[str, ...]:
    stop = (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop)
    if stop and model.tokenizer is None:
        raise bad_value("stop", "needs text, and this model has no tokenizer")
    return stop


def _prompts(value: Any, model: ModelFacts) -> tuple[TokenIds, ...]:
    """The four forms: a text, token ids, a list of texts, a list of lists of token ids."""
    if isinstance(value, str):
        return (_encoded(value, "prompt", model),)
    if not isinstance(value, list):
        raise bad_value("prompt", "must be a string, a list of token ids, or a list of either")
    if not value:
        raise bad_value("prompt", "must not be empty")
    kinds = set(map(type, value))
    if kinds == {int}:
        return (_checked_ids(value, "prompt", model),)
    if kinds not in ({str}, {list}):
        raise bad_value("prompt", "must hold token ids, or strings, or lists of token ids")
    if len(value) > MAX_PROMPTS:
        raise bad_value("prompt", f"may be a batch of {MAX_PROMPTS} at most, not {len(value)}")
    read = _encoded if kinds == {str} else _listed_ids
    return tuple(read(one, f"prompt[{index}]", model) for index, one in enumerate(value))


def _encoded(text: str, where: str, model: ModelFacts) -> TokenIds:
    if model.tokenizer is None:
        raise bad_request(
            f"{where} must be a list of token ids: this model has no tokenizer", "prompt",
            "invalid_value",
        )  # fmt: skip
    if not text:
        raise _empty(where)
    _check_beginning(text, "prompt", model)
    ids = tuple(model.tokenizer.encode(text))
    if not ids:
        raise bad_request(
            f"{where} holds nothing that the model has a token for", "prompt", "invalid_value"
        )
    return ids


def _check_beginning(text: str, param: str, model: ModelFacts) -> None:
    """Refuses a text by its beginning where that alone is too long.

    The tokenizer keeps all other threads waiting, over a second for 2 MB.
    """
    assert model.tokenizer is not None
    limit = model.max_model_len
    for characters in (factor * limit for factor in BEGINNINGS):
        if len(text) <= characters:
            return
        count = len(model.tokenizer.encode(text[:characters]))
        if count > SURELY_TOO_LONG * limit:
            raise _prompt_too_long(f"at least {count}", limit, param)


def _listed_ids(value: list[Any], where: str, model: ModelFacts) -> TokenIds:
    if not value:
        raise _empty(where)
    return _checked_ids(value, where, model)


def _empty(where: str) -> Refusal:
    return bad_request(f"{where} must not be empty", "prompt", "invalid_value")


def _checked_ids(ids: Sequence[Any], where: str, model: ModelFacts) -> TokenIds:
    """Token ids that the model knows; bool is no number here."""
    if not ids:
        return ()
    param = where.partition("[")[0]
    if set(map(type, ids)) != {int}:
        raise bad_request(
            f"{where} must hold token ids, which are integers", param, "invalid_value"
        )
    if min(ids) < 0 or max(ids) >= model.vocab_size:
        wrong = next(one for one in ids if not 0 <= one < model.vocab_size)
        raise bad_request(
            f"{where} holds the token id {_shown_number(wrong)}, outside the vocabulary of "
            f"{model.vocab_size}",
            param,
            "invalid_value",
        )
    return tuple(ids)


def _shown_number(value: int) -> str:
    """A client's number as an error may repeat it."""
    return str(value) if abs(value) < 1 << 64 else "of more than 64 bits"


def _chat_prompt(messages: list[dict[str, str]], model: ModelFacts) -> TokenIds:
    if model.tokenizer is None or not model.tokenizer.has_chat_template:
        raise bad_request(
            f"{model.name} has no chat template; use /v1/completions", None, "no_chat_template"
        )
    _check_beginning("".join(one["content"] for one in messages), "messages", model)
    try:
        ids = tuple(model.tokenizer.apply_chat_template(messages))
    except DstuneError as error:
        reason = str(error)[:LONGEST_REASON]
        raise bad_request(f"messages: {reason}", "messages", "invalid_value") from None
    if not ids:
        raise bad_value("messages", "become an empty prompt")
    return ids
