"""A request body becomes a JSON object, or a `Refusal`: the first step of reading a request.

Stricter than `json`: no duplicate keys, no NaN or infinity in any spelling, no lone surrogates,
bounded depth.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from dstune.server.http.refusal import Refusal, bad_request, shown

MAX_DEPTH = 32  # a chat with content parts needs 4

# a string matches also where its end is missing, lest every quote in it is tried anew
_STRUCTURE = re.compile(r'"(?:[^"\\]+|\\.?)*+"?|[\[\]{}]', re.DOTALL)
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_object(body: bytes) -> dict[str, Any]:
    """The object that a body holds; raises `Refusal` (400) for anything else."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _malformed(f"byte {error.start} is not UTF-8") from None
    if not text.strip():
        raise _malformed("the body is empty")
    _check_depth(text)
    try:
        document = json.loads(
            text,
            object_pairs_hook=_without_duplicates,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except json.JSONDecodeError as error:
        raise _malformed(f"{error.msg} at character {error.pos}") from None
    except ValueError:  # Python's own bound, 4,300 digits
        raise _malformed("a number has too many digits") from None
    if not isinstance(document, dict):
        raise _malformed("it must be an object")
    if _SURROGATE_ESCAPE.search(text):
        _check_text(document)
    return document


def _malformed(what: str) -> Refusal:
    return bad_request(f"the body is not valid JSON: {what}", None, "invalid_json")


def _check_depth(text: str) -> None:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for match in _STRUCTURE.finditer(text):
        mark = match[0]
        if mark in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise _malformed(f"it is nested deeper than {MAX_DEPTH} levels")
        elif mark in "]}":
            depth -= 1


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # which of two values counts differs between parsers, so neither may
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _malformed(f"the key {shown(key)} is given twice")
            seen.add(key)
    return made


def _no_constant(name: str) -> NoReturn:
    raise _malformed(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _malformed(f"the number {shown(text)} is too large")
    return value


def _check_text(value: Any) -> None:
    """Raises for a lone surrogate anywhere; recursion is bounded by `MAX_DEPTH`."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise bad_request(
                f"a text holds a lone surrogate at character {error.start}, "
                "which is not Unicode text",
                None,
                "invalid_unicode",
            ) from None
    elif isinstance(value, dict):
        for key, one in value.items():
            _check_text(key)
            _check_text(one)
    elif isinstance(value, list):
        for one in value:
            _check_text(one)
