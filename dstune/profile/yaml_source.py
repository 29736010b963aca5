"""Part of profile: YAML text becomes plain data that remembers on which line each key stands.

Duplicate keys, keys that are not text and documents that are not a mapping end here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

from dstune.errors import ProfileError

Path = tuple[str | int, ...]


@dataclass
class Source:
    """Plain data with the line of every key and the `--set` that replaced it, if one did."""

    name: str
    data: dict[str, Any]
    lines: dict[Path, int] = field(default_factory=dict)
    overrides: dict[Path, str] = field(default_factory=dict)

    def place(self, path: Path) -> str:
        """`file:line` of a key, or of the nearest mapping around it; or the `--set` itself."""
        around = [path[:end] for end in range(len(path), -1, -1)]
        for at in around:
            if at in self.overrides:
                return self.overrides[at]
        lines = [f"{self.name}:{self.lines[at]}" for at in around if at in self.lines]
        return lines[0] if lines else self.name


def read_yaml(name: str, text: str) -> Source:
    """Parses the text of a file called `name`; raises `ProfileError` with its line."""
    try:
        return _read(name, text)
    except RecursionError:
        raise ProfileError(f"{name}: nested too deeply for a profile") from None


def _read(name: str, text: str) -> Source:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ProfileError(f"{_where(name, error)}: not valid YAML: {_why(error)}") from None
    if root is None:
        raise ProfileError(f"{name}: the profile is empty; it needs at least name and workload")
    if not isinstance(root, yaml.MappingNode):
        line = root.start_mark.line + 1
        raise ProfileError(f"{name}:{line}: a profile is a mapping of keys to values")
    reader = _Reader(name)
    data = reader.plain(root, ())
    if reader.problems:
        raise ProfileError("\n".join(reader.problems))
    assert isinstance(data, dict)
    return Source(name, data, reader.lines)


def _where(name: str, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f"{name}:{mark.line + 1}" if mark is not None else name


def _why(error: yaml.YAMLError) -> str:
    why = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    return " ".join(str(why).split())


class _Reader:
    """Walks composed nodes, so that lines and duplicate keys are still to be seen."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: dict[Path, int] = {}
        self.problems: list[str] = []
        self._open: set[int] = set()
        self._scalars = yaml.SafeLoader("")

    def plain(self, node: yaml.Node, path: Path) -> Any:
        self.lines.setdefault(path, node.start_mark.line + 1)
        if id(node) in self._open:
            self._problem(node, path, "refers to itself")
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self.plain(item, (*path, at)) for at, item in enumerate(node.value)]
            return self._scalar(node, path)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._scalar(key_node, path)
            if not isinstance(key, str):
                self._problem(key_node, path, f"a key must be text, not {key!r}")
                continue
            below = (*path, key)
            if key in found:
                first = self.lines[below]
                self._problem(key_node, below, f"stands here a second time, first on line {first}")
                continue
            self.lines[below] = key_node.start_mark.line + 1
            found[key] = self.plain(value_node, below)
        return found

    def _scalar(self, node: yaml.Node, path: Path) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            return None
        try:
            value = self._scalars.construct_object(node)
            if isinstance(value, str):
                value.encode("utf-8")  # an escape can spell half a surrogate pair
            return value
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            self._problem(node, path, f"cannot be read: {' '.join(str(error).split())[:120]}")
            return None

    def _problem(self, node: yaml.Node, path: Path, message: str) -> None:
        key = ".".join(str(part) for part in path)
        prefix = f"{key}: " if key else ""
        self.problems.append(f"{self.name}:{node.start_mark.line + 1}: {prefix}{message}")
