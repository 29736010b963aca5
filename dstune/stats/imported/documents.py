"""Stats, imported: the JSON documents that lie in a folder or file, whatever they are."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dstune.errors import UsageError

JSON_SUFFIXES = (".json", ".jsonl")


@dataclass(frozen=True)
class Document:
    """One JSON object: a whole file, or one line of it."""

    path: Path
    line: int | None  # from 1, where the file has a document in each line
    content: dict[str, Any]

    @property
    def place(self) -> str:
        """Where it stands, for messages."""
        return str(self.path) if self.line is None else f"{self.path}, line {self.line}"


def documents(paths: Iterable[Path]) -> list[Document]:
    """Every JSON object in these files; what was never meant as JSON is passed over.

    Raises `UsageError` for a file that is damaged.
    """
    found: list[Document] = []
    for path in sorted(paths):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            if path.suffix in JSON_SUFFIXES:
                raise UsageError(f"{path} is damaged: it is not text") from error
            continue
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from error
        if path.suffix in JSON_SUFFIXES or text.lstrip().startswith("{"):
            found += _of_text(path, text)
    return found


def _of_text(path: Path, text: str) -> list[Document]:
    try:
        return _objects(path, [(None, json.loads(text))])
    except json.JSONDecodeError as error:
        lines = [(at, one) for at, one in enumerate(text.splitlines(), 1) if one.strip()]
        if len(lines) < 2 or not _is_json(lines[0][1]):  # one document over many lines, or none
            where = f"line {error.lineno}, column {error.colno}"
            raise UsageError(f"{path} is damaged: {error.msg} ({where})") from error
    found: list[tuple[int | None, Any]] = []
    for at, line in lines:
        try:
            found.append((at, json.loads(line)))
        except json.JSONDecodeError as error:
            raise UsageError(f"{path} is damaged: line {at} is not JSON ({error.msg})") from error
    return _objects(path, found)


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except json.JSONDecodeError:
        return False
    return True


def _objects(path: Path, values: Iterable[tuple[int | None, Any]]) -> list[Document]:
    return [Document(path, line, one) for line, one in values if isinstance(one, dict)]


def levels(path: Path) -> Iterable[list[Path]]:
    """The files of a folder, then those of its subfolders, level by level; a file is one level.

    Tools that make a folder per run put their results one or two levels down.
    """
    if path.is_file():
        yield [path]
        return
    folders = [path]
    while folders:
        inside = [one for folder in folders for one in sorted(folder.iterdir())]
        inside = [one for one in inside if not one.name.startswith(".")]
        yield [one for one in inside if one.is_file()]
        folders = [one for one in inside if one.is_dir() and not one.is_symlink()]
