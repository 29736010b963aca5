"""The messages of a chat as a template may see them: roles and text, nothing fetched or run."""

from __future__ import annotations

from typing import Any

from dstune.server.http.refusal import Refusal, bad_request, bad_value, shown

MAX_MESSAGES = 2048

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""OpenAI's roles -> the names that published templates know."""

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    # what the SDK's own answers hold when they are sent back
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "reasoning": (),
    "reasoning_content": (),
    "refusal": (),
    "tool_call_id": (),
    "tool_calls": ([],),
}
"""Keys of a message that are not supported -> values that mean nothing, beside null."""


def read_messages(value: Any) -> list[dict[str, str]]:
    """Role, content and name of each message; raises `Refusal` for anything else in them."""
    if not isinstance(value, list):
        raise bad_value("messages", "must be a list")
    if not value:
        raise bad_value("messages", "must not be empty")
    if len(value) > MAX_MESSAGES:
        raise bad_value("messages", f"must not be more than {MAX_MESSAGES}, but are {len(value)}")
    read = [_message(one, f"messages[{index}]") for index, one in enumerate(value)]
    if not any(one["content"] for one in read):
        raise bad_value("messages", "must hold some text")
    return read


def _message(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise _wrong(f"{where} must be an object with role and content")
    role = value.get("role")
    if not isinstance(role, str) or role not in ROLES:
        listed = ", ".join(ROLES)
        given = shown(role) if isinstance(role, str) else f"a {type(role).__name__}"
        raise _wrong(f"{where}.role must be one of {listed}, not {given}")
    for key, one in value.items():
        if key in ("role", "content", "name") or one is None:
            continue
        if key not in _NEUTRAL:
            raise _wrong(f"{where}: unknown key {shown(key)}")
        if one not in _NEUTRAL[key]:
            raise _wrong(f"{where}.{key} is not supported")
    message = {"role": ROLES[role], "content": _content(value.get("content"), where)}
    name = value.get("name")
    if name is not None:
        if not isinstance(name, str):
            raise _wrong(f"{where}.name must be a string")
        message["name"] = name
    return message


def _content(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        parts = [_part(one, f"{where}.content[{index}]") for index, one in enumerate(value)]
        return "\n".join(parts)
    raise _wrong(f"{where}.content must be a string, or a list of text parts")


def _part(value: Any, where: str) -> str:
    if not isinstance(value, dict):
        raise _wrong(f"{where} must be an object with type and text")
    kind = value.get("type")
    if kind != "text":
        given = shown(kind) if isinstance(kind, str) else "something else"
        raise _wrong(f"{where}.type: only text is supported, not {given}")
    unknown = [key for key in value if key not in ("type", "text")]
    if unknown:
        raise _wrong(f"{where}: unknown key {shown(unknown[0])}")
    text = value.get("text")
    if not isinstance(text, str):
        raise _wrong(f"{where}.text must be a string")
    return text


def _wrong(message: str) -> Refusal:
    return bad_request(message, "messages", "invalid_value")
