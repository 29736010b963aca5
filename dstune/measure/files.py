"""Measure: writing a file so that a kill at any moment leaves the old one or the new one."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Writes to a temporary name beside `path`, syncs it, and renames it."""
    temporary = temporary_for(path)
    with open(temporary, "wb") as file:
        file.write(data)
    publish(temporary, path)


def temporary_for(path: Path) -> Path:
    """The temporary name for `path` that this process writes to."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def publish(temporary: Path, path: Path) -> None:
    """Syncs a finished temporary file and gives it its name."""
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)
    _sync_folder(path.parent)


def append_line(path: Path, line: str) -> None:
    """Appends one line in a single write and syncs it; a torn last line is cut off first."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.ftruncate(descriptor, _end_of_last_whole_line(path))
        os.lseek(descriptor, 0, os.SEEK_END)
        os.write(descriptor, line.encode("utf-8") + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    _sync_folder(path.parent)


def whole_lines(path: Path) -> list[str]:
    """The lines of an append-only file; a last one without its newline was torn and is left out."""
    if not path.exists():
        return []
    data = path.read_bytes()[: _end_of_last_whole_line(path)]
    return data.decode("utf-8").split("\n")[:-1]


def _end_of_last_whole_line(path: Path) -> int:
    return path.read_bytes().rfind(b"\n") + 1


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
