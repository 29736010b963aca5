"""Tokens to text: stop strings however the text is cut, and texts that never lose a character."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstune.model.loading.open import bundled_folder
from dstune.model.tokenizer import Tokenizer
from dstune.server.http.ask import Ask
from dstune.server.http.choice import Choice, StopStrings, completion_logprobs
from dstune.server.http.flight import Token

TEXTS = st.text(alphabet="ab\u00e9", max_size=24)
STOPS = st.lists(st.text(alphabet="ab\u00e9", min_size=1, max_size=4), min_size=1, max_size=3)


def run(stops: tuple[str, ...], pieces: list[str]) -> tuple[list[str], bool]:
    search = StopStrings(stops)
    shown = []
    for piece in pieces:
        text, is_stopped = search.push(piece)
        shown.append(text)
        if is_stopped:
            return shown, True
    return [*shown, search.flush()], False


def first_stop(stops: tuple[str, ...], text: str) -> str | None:
    """The text before the stop string that ends first, found by looking at every end."""
    for end in range(1, len(text) + 1):
        starts = [end - len(one) for one in stops if text[:end].endswith(one)]
        if starts:
            return text[: min(starts)]
    return None


@given(TEXTS, STOPS, st.data())
def test_stop_strings_do_not_depend_on_how_the_text_is_cut(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    shown, is_stopped = run(tuple(stops), pieces)
    expected = first_stop(tuple(stops), text)
    assert "".join(shown) == (text if expected is None else expected)
    assert is_stopped == (expected is not None)


def test_text_that_begins_no_stop_string_is_not_held_back() -> None:
    search = StopStrings(("END", "#"))
    assert search.push("a") == ("a", False)
    assert search.push("bE") == ("b", False)
    assert search.push("N") == ("", False)
    assert search.push("x") == ("ENx", False)
    assert search.push("EN") == ("", False)
    assert search.push("D!") == ("", True)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    folder = bundled_folder("tiny-deepseek")
    return Tokenizer.from_file(folder / "tokenizer.json", eos_ids=(257,), bos_id=256)


def ask(**asked: object) -> Ask:
    defaults: dict[str, object] = {
        "is_chat": False, "prompts": ((1,),), "n": 1, "max_tokens": 9, "temperature": 0.0,
        "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0, "stop": (), "stop_token_ids": (),
        "ignore_eos": False, "num_logprobs": None, "echo": False, "stream": True,
        "include_usage": False, "return_token_ids": False, "timeout_s": None,
    }  # fmt: skip
    return Ask(**{**defaults, **asked})  # type: ignore[arg-type]


def token(token_id: int, finish_reason: str | None = None, **more: object) -> Token:
    fields = {"choice": 0, "logprob": None, "top_logprobs": None, "first_scheduled_ns": None,
              "num_cached_tokens": None, "at_ns": 1}  # fmt: skip
    return Token(token_id=token_id, finish_reason=finish_reason, **{**fields, **more})  # type: ignore[arg-type]


def test_half_a_character_is_held_back_and_never_lost(tokenizer: Tokenizer) -> None:
    first, second = "\u00e9".encode()
    whole = Choice(0, ask(), tokenizer)
    assert [whole.push(token(one)).text for one in (97, first, second)] == ["a", "", "\u00e9"]
    cut = Choice(0, ask(), tokenizer)
    pieces = [cut.push(token(97)), cut.push(token(first, "length"))]
    assert [one.text for one in pieces] == ["a", "\N{REPLACEMENT CHARACTER}"]


def test_the_end_token_is_counted_but_no_text(tokenizer: Tokenizer) -> None:
    choice = Choice(0, ask(stop=("zz",)), tokenizer)
    assert choice.push(token(ord("z"))).text == ""
    last = choice.push(token(257, "stop"))
    assert (last.text, last.finish_reason, choice.num_tokens) == ("z", "stop", 2)


def test_text_offsets_count_characters_of_the_text(tokenizer: Tokenizer) -> None:
    choice = Choice(0, ask(num_logprobs=1), tokenizer)
    first, second = "\u00e9".encode()
    made = [
        choice.push(token(one, logprob=-1.0, top_logprobs=[(98, -0.5)]))
        for one in (97, first, second, 98)
    ]
    shape = completion_logprobs([one.logprobs for one in made if one.logprobs is not None])
    assert shape["text_offset"] == [0, 1, 1, 2]
    assert shape["tokens"] == ["a", "\ufffd", "\ufffd", "b"]
    assert shape["top_logprobs"][0] == {"b": -0.5, "a": -1.0}
    assert shape["top_logprobs"][3] == {"b": -0.5}


def test_without_a_tokenizer_tokens_have_no_text() -> None:
    choice = Choice(0, ask(num_logprobs=0), None)
    piece = choice.push(token(7, logprob=-2.0))
    assert piece.text == ""
    assert piece.logprobs is not None and piece.logprobs.chosen.text == "token_id:7"
