"""Text cut into pieces of about a token, for servers that take no token ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstune.target.pieces import Pieces


def test_pieces_are_as_long_as_asked_on_average() -> None:
    pieces = Pieces("abcdefghij", 2.5)
    assert [pieces.text([one]) for one in pieces.ids] == ["ab", "cde", "fgh", "ij"]
    assert pieces.text([1, 3]) == "cdeij"


@given(st.text(min_size=1, max_size=300), st.floats(0.2, 40))
def test_all_pieces_together_are_the_text_but_for_a_rest(text: str, size: float) -> None:
    pieces = Pieces(text, size)
    whole = pieces.text(pieces.ids)
    assert text.startswith(whole)
    assert len(text) - len(whole) <= max(size, 1.0) + 1


def test_an_unknown_piece_is_an_error() -> None:
    with pytest.raises(IndexError):
        Pieces("abc", 1.0).text([7])
