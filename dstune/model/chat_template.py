"""A model's chat template: messages become one text, in jinja's sandbox.

Templates come with checkpoints, so they are foreign code: the sandbox keeps them from reaching
anything but the messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dstune.errors import ModelError, UsageError
from dstune.model.reason import one_line


class ChatTemplate:
    """A compiled template with the names that Hugging Face's templates rely on."""

    def __init__(self, text: str, *, bos_token: str, eos_token: str, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _strftime_now
        self._names = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = environment.from_string(text)
        except TemplateError as error:
            raise ModelError(f"{source}: broken chat template: {one_line(error)}") from None

    def render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool) -> str:
        """The chat as one text; raises `UsageError` for messages that the template refuses."""
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._names,
            )
        except UsageError:
            raise
        except Exception as error:  # a template may do anything with what it is given
            raise UsageError(f"the chat template fails on them: {one_line(error)}") from None


def _refuse(message: str) -> NoReturn:
    raise UsageError(f"the chat template refuses these messages: {message}")


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(value: object, indent: int | None = None) -> str:
    """Plain JSON, where jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
