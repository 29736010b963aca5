"""Target: prompts in text for servers that take no token ids: pieces of about a token each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


class Pieces:
    """A text cut into equal pieces; a piece's id is its number."""

    def __init__(self, text: str, characters_per_piece: float) -> None:
        size = max(characters_per_piece, 1.0)
        count = int(len(text) / size)
        edges = [round(at * size) for at in range(count + 1)]
        self._pieces = [text[a:b] for a, b in pairwise(edges)]

    @property
    def ids(self) -> list[int]:
        """The whole text as ids."""
        return list(range(len(self._pieces)))

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        return "".join(self._pieces[one] for one in ids)
