"""A tokenizer from a GGUF file's vocabulary and merges.

Only byte-level BPE is rebuilt. Expressions: llama.cpp `src/llama-vocab.cpp`, which took them from
the models' own tokenizer.json.
"""

from __future__ import annotations

from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, processors
from tokenizers import pre_tokenizers as pre
from tokenizers.pre_tokenizers import PreTokenizer

from dstune.architecture import ModelShape
from dstune.errors import ModelError
from dstune.model.loading.gguf_header import GgufHeader
from dstune.model.reason import one_line
from dstune.model.tokenizer import Tokenizer

CONTROL, USER_DEFINED = 3, 4  # token types

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{TAIL}"
QWEN2 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{TAIL}"
PRE_TOKENIZERS = ("smollm", "gpt-2", "default", "llama-bpe", "qwen2")


def gguf_tokenizer(header: GgufHeader, shape: ModelShape) -> Tokenizer:
    """The tokenizer that the metadata describes; raises `ModelError` for one that is not BPE."""
    fields, path = header.fields, header.path
    kind = fields.get("tokenizer.ggml.model")
    if kind != "gpt2":
        known = "SentencePiece" if kind == "llama" else "its kind"
        raise ModelError(
            f"{path}: tokenizer {kind!r} is not supported: {known} cannot be rebuilt from GGUF; "
            "use the model's Hugging Face folder"
        )
    pre_name = fields.get("tokenizer.ggml.pre", "default")
    if pre_name not in PRE_TOKENIZERS:
        raise ModelError(
            f"{path}: pre-tokenizer {pre_name!r} is not supported; supported are "
            f"{', '.join(PRE_TOKENIZERS)}"
        )
    try:
        core = _bpe(fields, pre_name)
    except KeyError as missing:
        raise ModelError(f"{path}: GGUF metadata lacks {missing}") from None
    except Exception as error:  # tokenizers raises bare Exception
        raise ModelError(f"{path}: the vocabulary is not usable: {one_line(error)}") from None
    ends = [*shape.eos_token_ids]
    if "tokenizer.ggml.eot_token_id" in fields:
        ends.append(int(fields["tokenizer.ggml.eot_token_id"]))
    return Tokenizer(
        core,
        chat_template=fields.get("tokenizer.chat_template"),
        eos_ids=tuple(dict.fromkeys(ends)),
        bos_id=shape.bos_token_id,
        source=str(path),
    )


def _bpe(fields: dict[str, Any], pre_name: str) -> tokenizers.Tokenizer:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ValueError("a token appears twice")
    kinds = fields.get("tokenizer.ggml.token_type", [1] * len(tokens))
    merges = [_pair(merge) for merge in fields["tokenizer.ggml.merges"]]
    model = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre_name == "llama-bpe")
    core = tokenizers.Tokenizer(model)
    core.pre_tokenizer = _pre_tokenizer(pre_name)
    core.decoder = decoders.ByteLevel()
    if pre_name == "qwen2":
        core.normalizer = normalizers.NFC()
    # Only control tokens are hidden from output; a user-defined one (<think>) is ordinary text
    # that must not be split.
    for kind in (CONTROL, USER_DEFINED):
        core.add_tokens(
            [
                AddedToken(token, special=kind == CONTROL, normalized=False)
                for token, found in zip(tokens, kinds, strict=True)
                if found == kind
            ]
        )
    _add_ends(core, fields, tokens, pre_name)
    return core


def _pair(merge: str) -> tuple[str, str]:
    left, gap, right = merge.partition(" ")
    if not (left and gap and right):
        raise ValueError(f"merge {merge!r} is no pair")
    return left, right


def _pre_tokenizer(name: str) -> PreTokenizer:
    """How text is cut before merging; add_prefix_space is off in every one of these models."""
    gpt2 = pre.ByteLevel(add_prefix_space=False)
    to_bytes = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    if name == "gpt-2":
        return gpt2
    if name == "smollm":
        return pre.Sequence([pre.Digits(individual_digits=True), gpt2])
    if name in ("llama-bpe", "qwen2"):
        cut = pre.Split(Regex(LLAMA3 if name == "llama-bpe" else QWEN2), "isolated")
        return pre.Sequence([cut, to_bytes])
    # "default" is llama.cpp's own mixture, not GPT-2's
    first = pre.Split(Regex(r"[\p{P}\$\+<=>\^~\|]+"), "isolated")
    numbers = pre.Split(Regex(r"\p{N}+"), "isolated")
    triples = pre.Split(Regex(r"[0-9][0-9][0-9]"), "isolated")
    words = pre.Split(Regex(GPT2), "isolated")
    return pre.Sequence([first, words, numbers, triples, to_bytes])


def _add_ends(
    core: tokenizers.Tokenizer, fields: dict[str, Any], tokens: list[str], pre_name: str
) -> None:
    """Put BOS before and EOS behind a text where the flags say so (llama-bpe: BOS by default)."""
    has_bos = fields.get("tokenizer.ggml.add_bos_token", pre_name == "llama-bpe")
    has_eos = fields.get("tokenizer.ggml.add_eos_token", False)
    ends: list[tuple[str, int]] = []
    parts = ["$A"]
    if has_bos:
        bos = int(fields["tokenizer.ggml.bos_token_id"])
        ends.append((tokens[bos], bos))
        parts.insert(0, tokens[bos])
    if has_eos:
        eos = int(fields["tokenizer.ggml.eos_token_id"])
        ends.append((tokens[eos], eos))
        parts.append(tokens[eos])
    if ends:
        core.post_processor = processors.TemplateProcessing(
            single=parts, special_tokens=list(dict.fromkeys(ends))
        )
