"""A tokenizer that is described in one process and made again in another is the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from models import save_byte_tokenizer

from dstune.model.loading.open import open_checkpoint
from dstune.model.tokenizer import Tokenizer

TEXTS = (
    "plain",
    "<|end|> and <|begin|> in text",
    "\u00e9\u4e16 \U0001f600 \x00",
    "def f(x):\n    ",
)
CHAT = [{"role": "user", "content": " hello <|end|> "}]


@pytest.fixture(params=["bundled", "bytes", "smollm2"])
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    if request.param == "bytes":
        save_byte_tokenizer(tmp_path)
        config = json.loads((tmp_path / "tokenizer_config.json").read_text())
        return Tokenizer.from_file(
            tmp_path / "tokenizer.json",
            chat_template=config["chat_template"],
            eos_token=config["eos_token"],
            bos_token=config["bos_token"],
        )
    model = "tiny-deepseek"
    if request.param == "smollm2":
        model = str(request.getfixturevalue("smollm2_gguf"))
    opened = open_checkpoint(model).tokenizer
    assert opened is not None
    return opened


def test_made_again_from_json_it_is_the_same(tokenizer: Tokenizer) -> None:
    again = Tokenizer.from_parts(json.loads(json.dumps(tokenizer.to_parts())))
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert again.encode(text) == ids
        assert again.encode(text, parse_special=True) == tokenizer.encode(text, parse_special=True)
        assert again.decode(ids) == tokenizer.decode(ids)
        assert [again.spelling(one) for one in ids] == [tokenizer.spelling(one) for one in ids]
    assert again.apply_chat_template(CHAT) == tokenizer.apply_chat_template(CHAT)
    for fact in ("special_ids", "vocab_size", "eos_ids", "bos_id", "has_byte_pieces"):
        assert getattr(again, fact) == getattr(tokenizer, fact)


def test_spellings_add_up_to_the_text(tokenizer: Tokenizer) -> None:
    text = TEXTS[-2] if tokenizer.has_byte_pieces else TEXTS[0]
    ids = [one for one in tokenizer.encode(text) if one not in tokenizer.special_ids]
    assert b"".join(tokenizer.spelling(one) for one in ids).decode() == text
