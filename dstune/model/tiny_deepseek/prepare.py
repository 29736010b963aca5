"""Writes the shipped files that need no training: tokenizer and held-out text.

python -m dstune.model.tiny_deepseek.prepare --out FOLDER
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from dstune.model.tiny_deepseek.data import build_corpus

# In the order of their ids, from 256 on.
_SPECIAL = ["<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>"]
_RESERVED = [f"<|reserved_{number}|>" for number in range(260, 264)]

_CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "<|assistant|>{{ message['content'] }}{{ eos_token }}"
    "{% else %}<|user|>{{ message['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_symbols() -> list[str]:
    """The printable character by which byte-level tokenizers write each byte, by byte value."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(b) if b in plain else chr(256 + others.index(b)) for b in range(256)]


def build_tokenizer() -> Tokenizer:
    """A tokenizer in which byte b has id b, followed by the special tokens."""
    vocabulary = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = [*_SPECIAL, *_RESERVED]
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    return tokenizer


def tokenizer_settings() -> dict[str, object]:
    """The contents of tokenizer_config.json."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _SPECIAL[0],
        "eos_token": _SPECIAL[1],
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 8192,
        "chat_template": _CHAT_TEMPLATE,
    }


def prepare(folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and heldout.txt."""
    build_tokenizer().save(str(folder / "tokenizer.json"))
    settings = json.dumps(tokenizer_settings(), indent=2)
    (folder / "tokenizer_config.json").write_text(settings + "\n", encoding="utf-8")
    (folder / "heldout.txt").write_text(build_corpus().held_out_text(), encoding="utf-8")


def main() -> None:
    """Parse the options and write the files."""
    parser = argparse.ArgumentParser(description="Write tokenizer and held-out text.")
    parser.add_argument("--out", required=True, type=Path)
    prepare(parser.parse_args().out)


if __name__ == "__main__":
    main()
