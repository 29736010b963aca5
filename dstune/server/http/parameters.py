"""The parameters of a completion or a chat, by name: typed, bounded, and none passed over.

Every name that OpenAI's and vLLM's documents know is in one of three places: a field of
`CompletionFields` or `ChatFields` (carried out), `UNSUPPORTED` (refused unless its value leaves
the answer as it is) or `WITHOUT_EFFECT` (accepted). Any other name is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from dstune.server.http.refusal import Refusal, bad_request, shown

MAX_N = 4
MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_LENGTH = 256  # characters
MAX_STOP_TOKENS = 256
MAX_TIMEOUT_S = 3600.0
MAX_WRONG_NAME = 40  # characters of an unknown name that a similar one is looked for

_StopText = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_LENGTH)]
_Logprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
_Tokens = Annotated[int, Meta(ge=1)]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a stream carries beside the text; obfuscation pads OpenAI's chunks, ours have none."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Fields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What both routes take. The defaults are OpenAI's, which are no user's choice."""

    model: str
    max_tokens: _Tokens | None = None
    max_completion_tokens: _Tokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] = 1.0
    top_k: Annotated[int, Meta(ge=-1, le=1 << 31)] = 0  # -1 and 0: off
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    n: Annotated[int, Meta(ge=1, le=MAX_N)] = 1
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    stop: _StopText | Annotated[list[_StopText], Meta(max_length=MAX_STOPS)] = []
    stop_token_ids: Annotated[list[int], Meta(max_length=MAX_STOP_TOKENS)] = []
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    timeout_s: Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_S)] | None = None


class CompletionFields(Fields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `/v1/completions` takes."""

    prompt: Any  # four forms; ask.py tells them apart
    logprobs: _Logprobs | None = None
    echo: bool = False


class ChatFields(Fields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `/v1/chat/completions` takes."""

    messages: Any  # messages.py reads them
    logprobs: bool = False
    top_logprobs: _Logprobs | None = None


AnyFields = TypeVar("AnyFields", CompletionFields, ChatFields)

UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    # OpenAI's
    "audio": (),
    "best_of": (1,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
    # vLLM's
    "add_generation_prompt": (True,),
    "add_special_tokens": (),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "cache_salt": (),
    "chat_template": (),
    "chat_template_kwargs": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "early_stopping": (False,),
    "guided_choice": (),
    "guided_decoding_backend": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_reasoning": (True,),
    "include_stop_str_in_output": (False,),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "logprob_token_ids": (),
    "media_io_kwargs": (),
    "min_tokens": (0,),
    "mm_processor_kwargs": (),
    "priority": (0,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "repetition_penalty": (1,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "structured_outputs": (),
    "structural_tag": (),
    "thinking_token_budget": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
}
"""Name -> values that change nothing, beside null."""

WITHOUT_EFFECT = frozenset({
    "metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention", "request_id", "safety_identifier", "service_tier", "store", "user",
})  # fmt: skip
"""Parameters of the provider's books and caches: the answer is the same without them."""


def read_fields(document: dict[str, Any], kind: type[AnyFields]) -> AnyFields:
    """The fields of a body, nulls left out as if not given; raises `Refusal` naming one."""
    wanted = {}
    for name, value in document.items():
        if name in kind.__struct_fields__:
            if value is not None:
                wanted[name] = value
        elif name in UNSUPPORTED:
            if value is not None and not _is_neutral(value, UNSUPPORTED[name]):
                raise bad_request(f"{name} is not supported", name, "unsupported_parameter")
        elif name not in WITHOUT_EFFECT:
            raise _unknown(name, kind.__struct_fields__)
    try:
        return msgspec.convert(wanted, kind)
    except msgspec.ValidationError as error:
        raise _as_refusal(str(error)) from None


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    # True == 1 in Python, so a bool must not slip through as a number
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral)


def _unknown(name: str, known: tuple[str, ...]) -> Refusal:
    near = difflib.get_close_matches(name, known, n=1) if len(name) <= MAX_WRONG_NAME else []
    hint = f"; did you mean {near[0]}?" if near else ""
    param = name if len(name) <= MAX_WRONG_NAME else None
    return bad_request(f"unknown parameter {shown(name)}{hint}", param, "unknown_parameter")


def _as_refusal(text: str) -> Refusal:
    """msgspec's "Expected `int`, got `str` - at `$.n`" as an error that names the parameter."""
    what, _, place = text.partition(" - at `$.")
    where = place.rstrip("`")
    if what.startswith("Object missing required field"):
        name = what.split("`")[1]
        return bad_request(f"{name} is required", name, "missing_required_parameter")
    if what.startswith("Object contains unknown field"):
        name = what.removeprefix("Object contains unknown field `").removesuffix("`")
        return bad_request(
            f"unknown parameter {shown(name)} of {where}", where, "unknown_parameter"
        )
    what = what[:1].lower() + what[1:].replace(" | null", "").replace("`", "")
    name = where.split(".")[0].split("[")[0]
    return bad_request(f"{where}: {what}", name or None, "invalid_value")
