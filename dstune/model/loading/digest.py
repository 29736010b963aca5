"""The digest that says which weights ran: headers whole, tensor data by sampled pages.

A whole SHA-256 of a 600 GB checkpoint takes longer than many runs. Two checkpoints of one shape
(two fine-tunings, say) differ nearly everywhere, so a few pages of every file tell them apart.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

PAGE_BYTES = 4096
PAGES_PER_FILE = 64


class Digest:
    """SHA-256 over labelled parts; the labels and lengths keep parts from running together."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, label: str, data: bytes) -> None:
        """Take in bytes whole."""
        self._hash.update(f"{label}:{len(data)}\n".encode())
        self._hash.update(data)

    def add_sampled(self, path: Path) -> None:
        """Take in a file's size and evenly spaced pages, the first and the last among them."""
        size = path.stat().st_size
        last = max(0, size - PAGE_BYTES)
        with path.open("rb") as file:
            for index in range(PAGES_PER_FILE):
                offset = last * index // (PAGES_PER_FILE - 1)
                file.seek(offset)
                self.add(f"{size}@{offset}", file.read(PAGE_BYTES))

    def hexdigest(self) -> str:
        """The digest as 64 hexadecimal digits."""
        return self._hash.hexdigest()
