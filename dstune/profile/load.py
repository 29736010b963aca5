"""Part of profile: a YAML file and its overrides become a `Profile`, or errors with their lines.

Every problem of a file is reported, one line each, as `file:line: key: what is wrong`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dstune.errors import ProfileError
from dstune.knobs import BY_NAME as KNOB_BY_NAME
from dstune.profile.model import Arrivals, Budget, Length, Profile, Slo, Workload
from dstune.profile.yaml_source import Path as KeyPath
from dstune.profile.yaml_source import Source, read_yaml

_SECTIONS: dict[KeyPath, type[BaseModel]] = {
    (): Profile,
    ("workload",): Workload,
    ("workload", "prompt_tokens"): Length,
    ("workload", "output_tokens"): Length,
    ("workload", "turns"): Length,
    ("arrivals",): Arrivals,
    ("slo",): Slo,
    ("budget",): Budget,
}


def load_profile(path: Path, overrides: Sequence[str] = ()) -> Profile:
    """Reads a profile; `overrides` are `a.b=c` with a YAML value. Raises `ProfileError`."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ProfileError(f"{path} is no regular file")  # a pipe would be waited for, for ever
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ProfileError(f"no such profile: {path}{_nearby(path)}") from None
    except IsADirectoryError:
        raise ProfileError(f"{path} is a folder, not a profile") from None
    except UnicodeDecodeError as error:
        raise ProfileError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}") from None
    return parse_profile(str(path), text, overrides, path.parent)


def parse_profile(
    name: str, text: str, overrides: Sequence[str] = (), folder: Path | None = None
) -> Profile:
    """`load_profile` for a text that stands in a file called `name` in `folder`."""
    source = read_yaml(name, text)
    for override in overrides:
        _apply(source, override)
    return _validate(source, folder)


def restore_profile(data: dict[str, Any], name: str = "run.json") -> Profile:
    """The profile that `dump_profile` made plain."""
    return _validate(Source(name, data))


def dump_profile(profile: Profile) -> dict[str, Any]:
    """A profile as plain data with every default filled in; `restore_profile` reads it again."""
    data = profile.model_dump(mode="json", exclude_none=True)
    # None is a value of a knob (derived from model and machine), not one that was left out
    return {**data, "knobs": dict(profile.knobs), "presets": [dict(one) for one in profile.presets]}


def _nearby(path: Path) -> str:
    for candidate in (path.with_suffix(".yaml"), Path("profiles") / path.with_suffix(".yaml").name):
        if candidate != path and candidate.is_file():
            return f"; did you mean {candidate}?"
    return ""


def _apply(source: Source, override: str) -> None:
    label = f"--set {override}"
    key, equals, text = override.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or not all(path):
        raise ProfileError(f"{label}: must look like a.b=value")
    try:
        # the reader of the file also reads the value: duplicate keys and bad tags end there
        value = read_yaml(label, f"value: {text}\n" if "\n" not in text else text).data["value"]
    except ProfileError:
        raise ProfileError(f"{label}: the value is not valid YAML") from None
    except KeyError:
        raise ProfileError(f"{label}: the value must stand on one line") from None
    at = source.data
    for depth, part in enumerate(path[:-1]):
        below = at.setdefault(part, {})
        if not isinstance(below, dict):
            inside = ".".join(path[: depth + 1])
            raise ProfileError(f"{label}: {inside} is {below!r}, which has no keys inside")
        at = below
    at[path[-1]] = value
    source.overrides[path] = label


def _validate(source: Source, folder: Path | None = None) -> Profile:
    try:
        return Profile.model_validate(source.data, context={"folder": folder})
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=True, include_input=True)
        lines = dict.fromkeys(line for one in found for line in _lines(source, one))
        raise ProfileError("\n".join(lines)) from None


def _lines(source: Source, error: ErrorDetails) -> list[str]:
    """One pydantic error as `place: key: message`, or as several where it carries several."""
    path = tuple(part for part in error["loc"] if part != "[key]")
    if error["type"] != "dstune":
        return [_at(source, path, _message(error, path))]
    lines = []
    for key, message in error.get("ctx", {})["problems"]:
        below = tuple(int(part) if part.isdigit() else part for part in key.split(".") if part)
        lines.append(_at(source, (*path, *below), message))
    return lines


def _at(source: Source, path: KeyPath, message: str) -> str:
    key = ".".join(str(part) for part in path)
    line = f"{source.place(path)}: {key}: {message}" if key else f"{source.place(path)}: {message}"
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in line)
    return shown if len(shown) <= 400 else shown[:397] + "..."


def _message(error: ErrorDetails, path: KeyPath) -> str:
    kind, given, context = error["type"], error["input"], error.get("ctx") or {}
    if kind == "extra_forbidden":
        return f"unknown key; {_did_you_mean(path)}"
    if kind == "missing":
        return "is missing"
    if kind in ("enum", "literal_error"):
        listed = str(context["expected"]).replace("'", "")
        near = difflib.get_close_matches(str(given), listed.replace(" or ", ", ").split(", "), n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        return f"must be {listed}, not {given!r}{hint}"
    expectations = {
        "int_type": "a whole number",
        "int_parsing": "a whole number",
        "int_from_float": "a whole number",
        "float_type": "a number",
        "finite_number": "a finite number",
        "string_type": "text",
        "string_too_short": "text that is not empty",
        "string_pattern_mismatch": "a short name of letters, digits, '.', '_' and '-'",
        "model_type": "a mapping of keys to values",
        "model_attributes_type": "a mapping of keys to values",
        "tuple_type": "a list",
    }
    if isinstance(given, float) and not math.isfinite(given):
        return f"must be a finite number, not {given!r}"
    if kind == "float_type" and isinstance(given, str) and _is_number(given):
        # YAML 1.1 reads 1e9 as text
        return f"must be a number; write {given!r} with a point and a sign, such as 1.0e+9"
    if kind in expectations:
        return f"must be {expectations[kind]}, not {given!r}"
    bounds = {"greater_than": ("gt", "above"), "greater_than_equal": ("ge", "at least"),
              "less_than": ("lt", "below"), "less_than_equal": ("le", "at most")}  # fmt: skip
    if kind in bounds:
        name, words = bounds[kind]
        return f"must be {words} {context[name]:g}, not {given!r}"
    return error["msg"]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _did_you_mean(path: KeyPath) -> str:
    unknown = str(path[-1])
    model = _SECTIONS.get(path[:-1])
    known = list(model.model_fields) if model else []
    near = difflib.get_close_matches(unknown, known, n=1)
    if near:
        return f"did you mean '{near[0]}'?"
    elsewhere = _where_known(unknown)
    if elsewhere:
        return f"did you mean '{elsewhere}'?"
    return f"known here: {', '.join(known)}" if known else "nothing is known here"


def _where_known(unknown: str) -> str | None:
    """The full path of a key that stands in the wrong section."""
    paths: Iterable[str] = (
        ".".join((*map(str, section), field))
        for section, model in _SECTIONS.items()
        for field in model.model_fields
    )
    full = [path for path in paths if path.split(".")[-1] == unknown]
    return full[0] if full else (f"knobs.{unknown}" if unknown in KNOB_BY_NAME else None)
