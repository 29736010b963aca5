"""Bodies: the normal one to the byte, and each hostile one really hostile in its own way."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import pytest

from dstune.load.bodies import Asker, body_of
from dstune.load.hostile import OVERLONG_BYTES
from dstune.load.plan import PlannedRequest
from dstune.load.wire import Reading
from dstune.measure.anomalies import Anomaly

Body = dict[str, object]
ASKER = Asker(model="tiny", max_model_len=512)
SEEDS = range(200)  # each sort of a kind is drawn among so many


def request(
    kind: str = "normal", prompt: int = 5, seed: int = 9, output: int = 7
) -> PlannedRequest:
    return PlannedRequest("r0-00000", 0, tuple(range(prompt)), 7, seed, kind=kind)


def text_of(ids: Sequence[int]) -> str:
    return " ".join(f"w{one}" for one in ids)


def parsed(
    kind: Anomaly, asker: Asker = ASKER, seed: int = 9, prompt: int = 5
) -> dict[str, object]:
    body, _ = body_of(request(kind.value, prompt, seed), asker)
    found = json.loads(body)
    assert isinstance(found, dict)
    return found


def test_the_normal_body_to_the_byte() -> None:
    body, reading = body_of(request(), ASKER)
    assert reading is Reading.PROMPT
    assert body == (
        b'{"model":"tiny","prompt":[0,1,2,3,4],"max_tokens":7,"temperature":0.0,"seed":9,'
        b'"stream":true,"stream_options":{"include_usage":true},'
        b'"ignore_eos":true,"return_token_ids":true}'
    )


def test_extras_are_left_out_and_text_takes_the_place_of_ids() -> None:
    plain = Asker("m", prompt_text=text_of, temperature=0.5, ignore_eos=False,
                  return_token_ids=False)  # fmt: skip
    assert json.loads(body_of(request(), plain)[0]) == {
        "model": "m", "prompt": "w0 w1 w2 w3 w4", "max_tokens": 7, "temperature": 0.5, "seed": 9,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip


@pytest.mark.parametrize("kind", Anomaly)
@pytest.mark.parametrize("asker", [ASKER, Asker("m", prompt_text=text_of), Asker("m", 40)])
def test_a_body_is_the_same_every_time_and_bounded(kind: Anomaly, asker: Asker) -> None:
    for seed in range(20):
        one = request(kind.value, seed=seed)
        assert body_of(one, asker) == body_of(one, asker)
        assert len(body_of(one, asker)[0]) < OVERLONG_BYTES + 1000


@pytest.mark.parametrize("max_model_len", [16, 512, 8192, 40_000])
def test_overlong_text_has_more_characters_than_the_context_has_tokens(max_model_len: int) -> None:
    asker = dataclasses.replace(ASKER, max_model_len=max_model_len)
    prompt = parsed(Anomaly.OVERLONG_TEXT, asker)["prompt"]
    assert isinstance(prompt, str) and len(prompt) == max_model_len + 1
    assert {len(one.encode()) for one in prompt} == {4}
    unknown = parsed(Anomaly.OVERLONG_TEXT, Asker("m"))["prompt"]
    assert isinstance(unknown, str) and len(unknown.encode()) == OVERLONG_BYTES


def test_special_characters_are_all_there_and_valid() -> None:
    prompt = parsed(Anomaly.SPECIAL_CHARACTERS)["prompt"]
    assert isinstance(prompt, str)
    for char in ("\0", "\u202e", "\u2066", "\u200b", "\u200d", "\U0001f468", "\u05e9", "\u0645",
                 "\x1b", "\x9f", "\u0301", "\uffff"):  # fmt: skip
        assert char in prompt
    prompt.encode()  # no lone surrogate
    assert len(prompt.encode()) + 16 < 512


@pytest.mark.parametrize("max_model_len", [32, 64, 300])
def test_special_characters_fit_into_a_short_context(max_model_len: int) -> None:
    for seed in SEEDS:
        found = parsed(Anomaly.SPECIAL_CHARACTERS, Asker("m", max_model_len), seed)
        prompt, output = found["prompt"], found["max_tokens"]
        assert isinstance(prompt, str) and isinstance(output, int)
        assert prompt and len(prompt.encode()) + output <= max_model_len


def test_a_lone_surrogate_is_an_escape_in_valid_json() -> None:
    prompts = set()
    for seed in SEEDS:
        body, _ = body_of(request(Anomaly.LONE_SURROGATE.value, seed=seed), ASKER)
        assert b"\\ud" in body and body.isascii()
        prompt = json.loads(body)["prompt"]
        with pytest.raises(UnicodeEncodeError):
            prompt.encode()
        prompts.add(prompt)
    assert len(prompts) == 4


def test_empty_prompts() -> None:
    assert {str(parsed(Anomaly.EMPTY_PROMPT, seed=seed)["prompt"]) for seed in SEEDS} == {"", "[]"}
    as_text = Asker("m", prompt_text=text_of)
    assert {parsed(Anomaly.EMPTY_PROMPT, as_text, seed)["prompt"] for seed in SEEDS} == {""}


def test_max_tokens_of_nothing_and_of_everything() -> None:
    assert parsed(Anomaly.ZERO_MAX_TOKENS)["max_tokens"] == 0
    for seed in SEEDS:
        huge = parsed(Anomaly.HUGE_MAX_TOKENS, seed=seed)
        assert isinstance(huge["max_tokens"], int) and huge["max_tokens"] >= 10**7
        assert "ignore_eos" not in huge and huge["stop"], "ends soon even if clipped"


def test_malformed_json_is_none_in_many_ways() -> None:
    bodies = set()
    for seed in SEEDS:
        body, _ = body_of(request(Anomaly.MALFORMED_JSON.value, seed=seed), ASKER)
        with pytest.raises((ValueError, RecursionError)):
            json.loads(body)
        bodies.add(body[-40:].replace(str(seed).encode(), b""))
    assert len(bodies) >= 10


def test_wrong_types_are_valid_json_and_no_valid_request() -> None:
    sorts = set()
    for seed in SEEDS:
        body, _ = body_of(request(Anomaly.WRONG_TYPES.value, seed=seed), ASKER)
        found = json.loads(body)
        normal = json.loads(body_of(request(seed=seed), ASKER)[0])
        if not isinstance(found, dict):
            sorts.add(json.dumps(found)[:8])
            continue
        wrong = {key for key in found if found[key] != normal.get(key)}
        assert len(wrong) == 1
        key = wrong.pop()
        sorts.add(f"{key} {found[key]}")
        right = {"prompt": (str, list), "stream": bool, "temperature": (int, float)}.get(key, int)
        is_ids = isinstance(found[key], list) and all(type(one) is int for one in found[key])
        assert not isinstance(found[key], right) or (key == "prompt" and not is_ids)
    assert len(sorts) == 14


@pytest.mark.parametrize(
    ("kind", "reading"), [(Anomaly.SLOW_READER, "slow"), (Anomaly.DISCONNECT, "hang_up")]
)
def test_readers_gone_wrong_ask_normally_for_a_long_answer(kind: Anomaly, reading: str) -> None:
    body, how = body_of(request(kind.value), ASKER)
    assert how == reading
    normal = json.loads(body_of(request(), ASKER)[0])
    assert json.loads(body) == {**normal, "max_tokens": 256}
    crowded = parsed(kind, prompt=500)
    assert (len(crowded["prompt"]), crowded["max_tokens"]) == (256, 256)  # type: ignore[arg-type]
    assert parsed(kind, Asker("m"), prompt=500)["max_tokens"] == 256


def test_duplicates_share_an_id_where_the_server_takes_one() -> None:
    first = request(Anomaly.DUPLICATE_ID.value, prompt=5, seed=4)
    second = request(Anomaly.DUPLICATE_ID.value, prompt=6, seed=4)
    for field, asker in [
        ("user", ASKER),
        ("request_id", dataclasses.replace(ASKER, takes_request_id=True)),
    ]:
        a, b = (json.loads(body_of(one, asker)[0]) for one in (first, second))
        assert a[field] == b[field] == "duplicate-4" and a["prompt"] != b["prompt"]
