"""Part of profile: a recording of traffic becomes rows of when, how long, and what was shared.

Two public forms, told apart by their first line:

- Mooncake, JSONL: `{"timestamp": ms, "input_length", "output_length", "hash_ids"}`; equal ids
  stand for equal blocks of 512 tokens, the last block of a prompt is partial. `hash_ids` may be
  left out.
- Azure, CSV: `TIMESTAMP,ContextTokens,GeneratedTokens`, as of 2023 (seven decimals) and 2024
  (time zone); spaces and case in the header do not matter.

Rows are put in order of time and counted from the first. The rows of a conversation are
cumulative in both: each holds the whole prompt as it was sent, and is replayed as it stands. A
length of 0, which nobody can ask for, becomes 1.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dstune.errors import ProfileError

BLOCK_TOKENS = 512
MOST_BYTES = 256 << 20  # some 20 times the longest Mooncake trace
NS_PER_MS = 1_000_000

_AZURE = ("timestamp", "contexttokens", "generatedtokens")
_MOONCAKE = {"timestamp", "input_length", "output_length"}


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace; `hash_ids` None: its prompt shares nothing."""

    place: str  # file:line
    offset_ns: int
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] | None = None

    @property
    def total_tokens(self) -> int:
        """Prompt and output."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True)
class Trace:
    """The rows of a file in order of time, and the file's SHA-256."""

    rows: tuple[TraceRow, ...]
    digest: str


def find_trace(path: str, folder: Path | None) -> Path:
    """The file that a profile in `folder` means; raises `ProfileError` with where it was sought.

    A relative path is sought beside the profile first, then in the working folder.
    """
    folders = [Path.cwd()] if folder is None else [folder, Path.cwd()]
    sought = list(dict.fromkeys((one / path).absolute() for one in folders))
    for one in sought:
        if one.is_file():
            return one
    shown = " and ".join(str(one) for one in sought)
    raise ProfileError(f"no such trace; looked for {shown}")


def read_trace(path: Path) -> Trace:
    """Reads a trace; raises `ProfileError` with file and line."""
    try:
        stat = path.stat()
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}") from None
    if not path.is_file():
        raise ProfileError(f"{path} is no regular file")
    if stat.st_size > MOST_BYTES:
        raise ProfileError(
            f"{path} has {stat.st_size >> 20} MiB, {MOST_BYTES >> 20} at most: cut a part out of it"
        )
    return _read(path, stat.st_mtime_ns, stat.st_size)


def clipped(row: TraceRow, most_tokens: int) -> TraceRow:
    """The row with the end of its prompt cut so that both lengths fit into `most_tokens`.

    The output stays whole unless it leaves no room for one token of prompt.
    """
    if row.total_tokens <= most_tokens:
        return row
    output = min(row.output_tokens, most_tokens - 1)
    prompt = most_tokens - output
    hash_ids = row.hash_ids and row.hash_ids[: -(-prompt // BLOCK_TOKENS)]
    return dataclasses.replace(row, prompt_tokens=prompt, output_tokens=output, hash_ids=hash_ids)


@functools.lru_cache(maxsize=4)
def _read(path: Path, mtime_ns: int, size: int) -> Trace:
    # mtime and size only make a changed file another entry of the cache
    data = path.read_bytes()
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ProfileError(f"{path}:{line}: not UTF-8 text") from None
    rows = sorted(_rows(path, lines), key=lambda row: row.offset_ns)  # stable
    if not rows:
        raise ProfileError(f"{path}: the trace has no rows")
    first_ns = rows[0].offset_ns
    from_first = tuple(dataclasses.replace(row, offset_ns=row.offset_ns - first_ns) for row in rows)
    return Trace(from_first, hashlib.sha256(data).hexdigest())


def _rows(path: Path, lines: list[str]) -> Iterator[TraceRow]:
    number, first = next(((at, line) for at, line in enumerate(lines, 1) if line.strip()), (1, ""))
    if first.lstrip().startswith("{"):
        return (_mooncake(f"{path}:{at}", line) for at, line in enumerate(lines, 1) if line.strip())
    names = [one.lower() for one in _cells(first)]
    if not set(_AZURE) <= set(names):
        raise ProfileError(
            f"{path}:{number}: neither a Mooncake trace (a JSON object a line) nor an Azure one "
            "(a header of TIMESTAMP,ContextTokens,GeneratedTokens)"
        )
    columns = [names.index(one) for one in _AZURE]
    return (
        _azure(f"{path}:{at}", line, columns)
        for at, line in enumerate(lines[number:], number + 1)
        if line.strip()
    )


def _mooncake(place: str, line: str) -> TraceRow:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise ProfileError(f"{place}: not a JSON object") from None
    if not isinstance(row, dict):
        raise ProfileError(f"{place}: must be a JSON object, not {row!r}")
    if missing := sorted(_MOONCAKE - set(row)):
        raise ProfileError(f"{place}: {missing[0]} is missing")
    at_ms = row["timestamp"]
    if isinstance(at_ms, bool) or not isinstance(at_ms, int | float) or not 0 <= at_ms < 1e15:
        raise ProfileError(f"{place}: timestamp must be milliseconds from 0 on, not {at_ms!r}")
    prompt = _length(place, "input_length", row["input_length"])
    return TraceRow(
        place,
        round(at_ms * NS_PER_MS),
        prompt,
        _length(place, "output_length", row["output_length"]),
        _hash_ids(place, row.get("hash_ids"), prompt),
    )


def _hash_ids(place: str, ids: Any, prompt_tokens: int) -> tuple[int, ...] | None:
    if ids is None:
        return None
    if not isinstance(ids, list) or not all(type(one) is int for one in ids):
        raise ProfileError(f"{place}: hash_ids must be a list of whole numbers")
    needed = -(-prompt_tokens // BLOCK_TOKENS)
    if len(ids) != needed:
        raise ProfileError(
            f"{place}: {prompt_tokens} prompt tokens are {needed} blocks of {BLOCK_TOKENS}, "
            f"but hash_ids names {len(ids)}"
        )
    return tuple(ids)


def _azure(place: str, line: str, columns: list[int]) -> TraceRow:
    cells = _cells(line)
    try:
        when, prompt, output = (cells[one] for one in columns)
    except IndexError:
        raise ProfileError(f"{place}: has fewer columns than the header") from None
    try:
        at = datetime.fromisoformat(when)
    except ValueError:
        raise ProfileError(f"{place}: TIMESTAMP must be a date and a time, not {when!r}") from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    # whole microseconds, for a float of the seconds since 1970 is off by more
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return TraceRow(
        place,
        micros * 1000,
        _length(place, "ContextTokens", _number(prompt)),
        _length(place, "GeneratedTokens", _number(output)),
    )


def _cells(line: str) -> list[str]:
    try:
        return [one.strip() for one in next(csv.reader([line]), [])]
    except csv.Error:  # a cell without end
        return []


def _number(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else text


def _length(place: str, name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 24:
        raise ProfileError(f"{place}: {name} must be a number of tokens, not {value!r}")
    return max(value, 1)
