"""Load: what is sent for a planned request, down to the byte."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dstune.load.hostile import hostile_body
from dstune.load.plan import PlannedRequest
from dstune.load.wire import Reading
from dstune.measure.anomalies import Anomaly

NORMAL = "normal"
LONG_ANSWER_TOKENS = 256  # enough that a slow or hanging-up reader meets an answer under way
_LONG_ANSWERS = (Anomaly.SLOW_READER.value, Anomaly.DISCONNECT.value)


@dataclass(frozen=True)
class Asker:
    """How a server's `/v1/completions` is asked, and which of vLLM's extras it takes."""

    model: str
    max_model_len: int | None = None  # None: the server does not tell
    prompt_text: Callable[[Sequence[int]], str] | None = None  # unset: prompts are token ids
    temperature: float = 0.0
    ignore_eos: bool = True  # makes an answer exactly as long as planned
    return_token_ids: bool = True  # makes tokens countable where their text is held back
    takes_request_id: bool = False  # a field of the body; `user` bears a duplicate's id otherwise


def body_of(request: PlannedRequest, asker: Asker) -> tuple[bytes, Reading]:
    """The body of a POST, and how its answer is to be read."""
    if request.kind == NORMAL:
        return msgspec.json.encode(_fields(request, asker)), Reading.PROMPT
    if request.kind in _LONG_ANSWERS:
        request = _with_long_answer(request, asker.max_model_len)
    return hostile_body(
        Anomaly(request.kind),
        _fields(request, asker),
        seed=request.seed,
        max_model_len=asker.max_model_len,
        id_field="request_id" if asker.takes_request_id else "user",
    )


def _fields(request: PlannedRequest, asker: Asker) -> dict[str, Any]:
    prompt: object = request.prompt_token_ids
    if asker.prompt_text is not None:
        prompt = asker.prompt_text(request.prompt_token_ids)
    fields: dict[str, Any] = {
        "model": asker.model,
        "prompt": prompt,
        "max_tokens": request.output_tokens,
        "temperature": asker.temperature,
        "seed": request.seed,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if asker.ignore_eos:
        fields["ignore_eos"] = True
    if asker.return_token_ids:
        fields["return_token_ids"] = True
    return fields


def _with_long_answer(request: PlannedRequest, max_model_len: int | None) -> PlannedRequest:
    """The request with its answer made long, and its prompt cut where that leaves no room."""
    prompt, room = request.prompt_token_ids, LONG_ANSWER_TOKENS
    if max_model_len is not None:
        prompt = prompt[: max(1, max_model_len // 2)]
        room = min(room, max_model_len - len(prompt))
    return dataclasses.replace(
        request, prompt_token_ids=prompt, output_tokens=max(room, request.output_tokens)
    )
