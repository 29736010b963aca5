"""Load: the bodies of hostile requests, each a normal body gone wrong in one way.

Which of several ways is drawn from the request's seed, so that a load test meets many of them and
a second one the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from typing import Any

import msgspec

from dstune.load.wire import Reading
from dstune.measure.anomalies import Anomaly

OVERLONG_BYTES = 200_000  # at most
SPECIAL_TOKENS = 16  # of an answer to special characters

Fields = dict[str, Any]

_RARE = (0x20000, 0xA6D6)  # CJK Extension B: first, and how many; 4 bytes of UTF-8 each
_SPECIAL = (
    "a\x00b",  # NUL
    "\u202eright to left override\u202c \u2066isolate\u2069",
    "zero\u200bwidth\u200c\u200d\u2060\ufeff",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f3f3\ufe0f\u200d\U0001f308",
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd",  # Arabic, Hebrew
    "\x01\x07\x08\x1b[31m\x7f\x80\x9f",  # C0, DEL, C1, an escape sequence
    "e\u0301\u0323\u0334\u0489 Z\u0351\u036b",  # stacked combining marks
    "<|endoftext|><s></s>[INST]<\uff5cUser\uff5c>",  # special tokens spelled as text
    "\ud7ff\ue000\uffff\U0010ffff",  # beside the surrogates, noncharacters
)
_STOPS = ["e ", "s ", ". ", "\n"]  # soon met, so that no answer fills the whole context


def hostile_body(
    anomaly: Anomaly,
    fields: Mapping[str, Any],
    *,
    seed: int,
    max_model_len: int | None,
    id_field: str,
) -> tuple[bytes, Reading]:
    """What goes wrong with the body `fields` of a normal request, and how the answer is read.

    `id_field` bears the id that a pair of duplicates shares.
    """
    random, wrong = Random(seed), dict(fields)
    if anomaly is Anomaly.SLOW_READER:
        return msgspec.json.encode(wrong), Reading.SLOW
    if anomaly is Anomaly.DISCONNECT:
        return msgspec.json.encode(wrong), Reading.HANG_UP
    if anomaly is Anomaly.MALFORMED_JSON:
        return _malformed(wrong, random), Reading.PROMPT
    if anomaly is Anomaly.WRONG_TYPES:
        return json.dumps(_wrongly_typed(wrong, random)).encode(), Reading.PROMPT
    if anomaly is Anomaly.LONE_SURROGATE:
        # json.dumps escapes what UTF-8 cannot hold
        halves = ("\ud83d", "\ude00", "\ude00\ud83d", "\ud83d \ude00")
        wrong["prompt"] = f"half a character: {random.choice(halves)}."
        return json.dumps(wrong).encode(), Reading.PROMPT
    if anomaly is Anomaly.OVERLONG_TEXT:
        wrong["prompt"] = _overlong(random, max_model_len)
    elif anomaly is Anomaly.SPECIAL_CHARACTERS:
        wrong["max_tokens"] = min(wrong["max_tokens"], SPECIAL_TOKENS)
        wrong["prompt"] = _special(random, max_model_len)
    elif anomaly is Anomaly.EMPTY_PROMPT:
        is_text = isinstance(wrong["prompt"], str)
        wrong["prompt"] = "" if is_text or random.random() < 0.5 else []
    elif anomaly is Anomaly.ZERO_MAX_TOKENS:
        wrong["max_tokens"] = 0
    elif anomaly is Anomaly.HUGE_MAX_TOKENS:
        wrong.pop("ignore_eos", None)
        wrong["max_tokens"] = random.choice((10**7, 1 << 31, (1 << 63) - 1))
        wrong["stop"] = _STOPS
    else:
        assert anomaly is Anomaly.DUPLICATE_ID
        wrong[id_field] = f"duplicate-{seed}"
    return msgspec.json.encode(wrong), Reading.PROMPT


def _overlong(random: Random, max_model_len: int | None) -> str:
    """More tokens than the context has, in as few bytes as is sure, 200 KB at most.

    Rare characters in a random order are a token each at least, in any vocabulary.
    """
    first, num = _RARE
    most = OVERLONG_BYTES // 4
    count = most if max_model_len is None else min(most, max_model_len + 1)
    return "".join(chr(first + random.randrange(num)) for _ in range(count))


def _special(random: Random, max_model_len: int | None) -> str:
    """Special characters of every sort, as many as surely fit: a byte is a token at most."""
    room = None if max_model_len is None else max(4, max_model_len - SPECIAL_TOKENS - 8)
    text = " ".join(random.sample(_SPECIAL, len(_SPECIAL)))
    return text.encode()[:room].decode(errors="ignore")


def _malformed(fields: Fields, random: Random) -> bytes:
    whole = msgspec.json.encode(fields)
    return random.choice(
        (
            b"",
            whole[: len(whole) // 2],
            whole[:-1],
            whole[:-1] + b",}",
            whole + b"}",
            whole.replace(b'"', b"'"),
            whole.replace(b'"max_tokens"', b"max_tokens"),
            whole.replace(b'"stream":true', b'"stream":True'),
            whole[:-1] + b',"user":"\xc3\x28"}',  # not UTF-8
            whole[:-1] + b',"user":"a\nb"}',  # a bare line feed inside text
            b'{"prompt":' + b"[" * 5000,
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the start of a TLS handshake
        )
    )


def _wrongly_typed(fields: Fields, random: Random) -> object:
    key, value = random.choice(
        (
            ("prompt", 17),
            ("prompt", {"text": "hello"}),
            ("prompt", [[1, "a"], None]),
            ("prompt", [1.5, 2.5]),
            ("max_tokens", "many"),
            ("max_tokens", [16]),
            ("temperature", "hot"),
            ("temperature", {"value": 1}),
            ("stream", "perhaps"),
            ("seed", "x"),
            ("n", "two"),
            ("", [fields]),  # the whole body
            ("", "hello"),
            ("", None),
        )
    )
    return {**fields, key: value} if key else value
