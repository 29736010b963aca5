"""Completions and chats over real sockets, from the bundled model behind the steered front."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fronts import (
    MODEL,
    Hanging,
    SteeredFront,
    complete,
    gauges,
    send,
    stream,
    texts,
    wait_for,
)

from dstune.engine.config import EngineConfig
from dstune.engine.engine import Engine
from dstune.engine.request import SamplingParams
from dstune.model.loading.open import open_checkpoint

KNOBS = {
    "max_num_seqs": 4, "max_model_len": 4096, "kv_cache_memory_bytes": 64_000_000,
    "precision": "fp32",
}  # fmt: skip
GREEDY: dict[str, Any] = {"prompt": "def main(arguments):", "max_tokens": 48, "temperature": 0}
FREED_S = 2.0


@pytest.fixture(scope="module")
def front() -> Iterator[SteeredFront]:
    with SteeredFront(KNOBS) as made:
        yield made


@pytest.fixture(scope="module")
def port(front: SteeredFront) -> int:
    return front.port


def test_greedy_over_http_is_what_the_engine_computes(port: int) -> None:
    checkpoint = open_checkpoint(MODEL)
    assert checkpoint.tokenizer is not None
    engine = Engine(checkpoint, EngineConfig.from_knobs(KNOBS))
    prompt = tuple(checkpoint.tokenizer.encode(GREEDY["prompt"]))
    engine.add("a", prompt, SamplingParams(max_tokens=48))
    expected: list[int] = []
    while engine.has_requests:
        step = engine.step()
        assert step is not None
        expected += [token.token_id for token in step.tokens]
    answer = complete(port, **GREEDY, return_token_ids=True)
    choice = answer["choices"][0]
    assert choice["token_ids"] == expected
    assert choice["text"] == checkpoint.tokenizer.decode(expected)
    assert choice["finish_reason"] == "length"
    assert answer["usage"] == {
        "prompt_tokens": len(prompt), "completion_tokens": 48, "total_tokens": len(prompt) + 48,
        "prompt_tokens_details": {"cached_tokens": 0},
    }  # fmt: skip
    assert answer["dstune"]["precision"] == "fp32" and answer["dstune"]["queue_ns"] >= 0


@pytest.mark.parametrize("more", [{}, {"echo": True}, {"n": 3, "temperature": 1, "seed": 5},
                                  {"stop": ["e", "xyz"]}, {"logprobs": 2}], ids=str)  # fmt: skip
def test_a_stream_is_the_whole_answer_in_pieces(port: int, more: dict[str, Any]) -> None:
    asked = {**GREEDY, **more, "return_token_ids": True}
    whole = complete(port, **asked)
    found = stream(port, **asked, stream_options={"include_usage": True})
    *chunks, last = found
    for choice in whole["choices"]:
        index = choice["index"]
        mine = [one for event in chunks for one in event["choices"] if one["index"] == index]
        assert texts(chunks, index) == choice["text"]
        assert [one["token_ids"] for one in mine] == [[one] for one in choice["token_ids"]]
        reasons = [one["finish_reason"] for one in mine]
        assert reasons == [None] * (len(mine) - 1) + [choice["finish_reason"]]
        if "logprobs" in more:
            merged = [one for part in mine for one in part["logprobs"]["token_logprobs"]]
            assert merged == choice["logprobs"]["token_logprobs"]
    assert last["choices"] == []
    count = ("prompt_tokens", "completion_tokens")
    assert [last["usage"][one] for one in count] == [whole["usage"][one] for one in count]
    assert all(event["usage"] is None for event in chunks)
    assert last["dstune"]["backend"]


def test_chat_streams_its_role_once_and_adds_up(port: int) -> None:
    asked = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20, "seed": 3,
             "logprobs": True, "top_logprobs": 2}  # fmt: skip
    status, _, whole = send(port, "/v1/chat/completions", {"model": MODEL, **asked})
    assert status == 200
    found = stream(port, "/v1/chat/completions", **asked)
    deltas = [one["choices"][0]["delta"] for one in found]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert all("role" not in one for one in deltas[1:])
    message = whole["choices"][0]["message"]
    assert "".join(one["content"] for one in deltas) == message["content"]
    content = whole["choices"][0]["logprobs"]["content"]
    assert len(content) == whole["usage"]["completion_tokens"]
    assert bytes(content[0]["bytes"]).decode("utf-8", "replace") == content[0]["token"]
    assert len(content[0]["top_logprobs"]) == 2
    streamed = [one["choices"][0]["logprobs"] for one in found[1:]]
    assert [one for part in streamed for one in part["content"]] == content


def test_seeds_make_answers_repeat_and_choices_differ(port: int) -> None:
    asked = {**GREEDY, "temperature": 1.0, "seed": 40, "n": 3}
    first = [one["text"] for one in complete(port, **asked)["choices"]]
    again = [one["text"] for one in complete(port, **asked)["choices"]]
    assert first == again and len(set(first)) == 3
    alone = complete(port, **{**asked, "n": 1, "seed": 41})["choices"][0]["text"]
    assert alone == first[1]
    free = {**GREEDY, "temperature": 1.0}
    assert complete(port, **free)["choices"] != complete(port, **free)["choices"]
    for edge in (-(1 << 63), (1 << 63) - 1):
        assert len(complete(port, **{**asked, "seed": edge})["choices"]) == 3


def test_a_batch_of_prompts_keeps_its_order(port: int) -> None:
    prompts = ["import os", "class A:"]
    batch = complete(port, prompt=prompts, max_tokens=8, temperature=0, n=2)
    texts_of = [one["text"] for one in batch["choices"]]
    single = [complete(port, prompt=one, max_tokens=8, temperature=0) for one in prompts]
    alone = [one["choices"][0]["text"] for one in single]
    assert texts_of == [alone[0], alone[0], alone[1], alone[1]]
    assert [one["index"] for one in batch["choices"]] == [0, 1, 2, 3]
    assert batch["usage"]["prompt_tokens"] == sum(one["usage"]["prompt_tokens"] for one in single)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_stop_strings_across_tokens_cut_the_text_and_end_the_work(port: int, length: int) -> None:
    full = complete(port, **GREEDY)["choices"][0]["text"]
    stop = full[20 : 20 + length]
    cut = full.index(stop)
    asked = {**GREEDY, "max_tokens": 4000, "stop": [stop, "\x00never"]}
    answer = complete(port, **asked)
    assert answer["choices"][0]["text"] == full[:cut]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == cut + length  # a token is a byte here
    found = stream(port, **asked)
    assert texts(found) == full[:cut]
    wait_for(lambda: gauges(port)["num_requests_running"] == 0, FREED_S)


def test_text_held_back_for_a_stop_string_comes_when_it_is_none(port: int) -> None:
    full = complete(port, **GREEDY)["choices"][0]["text"]
    almost = full[-1] + "\x00"
    answer = complete(port, **GREEDY, stop=almost)
    assert answer["choices"][0] | {"text": full} == answer["choices"][0]
    found = stream(port, **GREEDY, stop=almost)
    assert texts(found) == full and len(found) == 48
    shown = [one["choices"][0]["text"] for one in found]
    assert "" in shown and shown[-1].endswith(full[-1])


def test_cached_prefixes_are_told(front: SteeredFront, port: int) -> None:
    front.ask({"op": "reset"})
    asked = {"prompt": list(range(97, 117)) * 4, "max_tokens": 1}
    assert complete(port, **asked)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert complete(port, **asked)["usage"]["prompt_tokens_details"]["cached_tokens"] == 64


def test_plain_routes(port: int) -> None:
    assert send(port, "/health")[0] == 200
    status, _, models = send(port, "/v1/models")
    assert status == 200 and models["data"][0]["id"] == MODEL
    assert models["data"][0]["max_model_len"] == KNOBS["max_model_len"]
    assert send(port, f"/v1/models/{MODEL}")[2]["id"] == MODEL
    tokens = send(port, "/tokenize", {"prompt": "<|user|>hi"})[2]
    assert tokens["count"] == len(tokens["tokens"]) == 10  # control text is plain text
    assert tokens == send(port, "/tokenize", {"text": "<|user|>hi"})[2]
    assert tokens["max_model_len"] == KNOBS["max_model_len"]
    for path, method, expected in (
        ("/nothing", "GET", 404), ("/v1/completions", "GET", 405), ("/health/", "GET", 404),
        ("/v1/models/other", "GET", 404),
    ):  # fmt: skip
        status, _, body = send(port, path, method=method)
        assert status == expected and body["error"]["message"]
    assert send(port, "/tokenize", {"prompt": 1})[0] == 400


def test_deadlines_are_504_or_an_error_in_the_stream(port: int) -> None:
    slow = {"model": MODEL, "prompt": "x", "max_tokens": 4000, "ignore_eos": True,
            "timeout_s": 0.3}  # fmt: skip
    status, _, body = send(port, "/v1/completions", slow)
    assert status == 504 and body["error"]["code"] == "deadline_exceeded"
    status, _, text = send(port, "/v1/completions", {**slow, "stream": True})
    found = [one.removeprefix("data: ") for one in text.split("\n\n") if one]
    assert status == 200 and found[-1] == "[DONE]"
    assert json.loads(found[-2])["error"]["code"] == "deadline_exceeded"
    assert all("choices" in json.loads(one) for one in found[:-2])
    wait_for(lambda: gauges(port)["kv_cache_usage_perc"] == 0, FREED_S)


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("is_queued", [True, False], ids=["queued", "running"])
def test_a_client_that_hangs_up_leaves_no_blocks(
    port: int, is_stream: bool, is_queued: bool
) -> None:
    wait_for(lambda: gauges(port)["kv_cache_usage_perc"] == 0, FREED_S)
    long = {"prompt": "x" * 100, "max_tokens": 3900, "ignore_eos": True, "temperature": 1}
    holders = [Hanging(port, **long, stream=True) for _ in range(4 if is_queued else 0)]
    for one in holders:
        assert one.read()
    before = gauges(port)
    gone = [Hanging(port, **long, stream=is_stream) for _ in range(2)]
    kind = "waiting" if is_queued else "running"
    wait_for(lambda: gauges(port)[f"num_requests_{kind}"] == 2)
    for one in gone:
        one.hang_up()
    wait_for(
        lambda: (
            gauges(port)["num_requests_waiting"] == 0
            and gauges(port)["num_requests_running"] == len(holders)
        ),
        FREED_S,
    )
    for one in holders:
        one.hang_up()
    wait_for(lambda: gauges(port)["kv_cache_usage_perc"] == 0, FREED_S)
    assert gauges(port)["num_requests_running"] == 0
    text = send(port, "/metrics")[2]
    assert 'request_success_total{finished_reason="abort"' in text
    assert before["num_requests_running"] == len(holders)


def test_duplicate_request_ids_are_harmless(port: int) -> None:
    # a body's own request_id, twice at once
    one = Hanging(port, **GREEDY, request_id="same", stream=True)
    two = Hanging(port, **GREEDY, request_id="same", stream=True)
    answers = [one.read_all(), two.read_all()]
    assert all(answer.count(b"data: ") == 49 for answer in answers)
    one.hang_up()
    two.hang_up()


def test_steering_goes_through_and_configures_what_is_served(front: SteeredFront) -> None:
    front.ask({"op": "steps"})
    complete(front.port, **GREEDY)
    steps = front.ask({"op": "steps"})["steps"]
    assert sum(one["num_decode_tokens"] for one in steps) == 47
    assert front.ask({"op": "tokenize", "text": "hi"})["token_ids"] == [104, 105]
    wrong = front.ask({"op": "configure", "knobs": {"no_such": 1}})
    assert wrong["event"] == "error" and wrong["kind"] == "KnobError"
    changed = front.ask({"op": "configure", "knobs": {**KNOBS, "max_model_len": 128}})
    assert changed["restart"] == "rebuild"
    try:
        too_long = {"model": MODEL, "prompt": "x" * 128}
        assert send(front.port, "/v1/completions", too_long)[0] == 400
        assert send(front.port, "/v1/models")[2]["data"][0]["max_model_len"] == 128
    finally:
        front.ask({"op": "configure", "knobs": KNOBS})


def test_configuring_waits_for_live_requests(front: SteeredFront) -> None:
    running = Hanging(front.port, **{**GREEDY, "max_tokens": 64}, stream=True)
    assert running.read()
    changed = front.ask({"op": "configure", "knobs": {**KNOBS, "block_size": 32}})
    assert changed["restart"] == "rebuild"
    assert running.read_all().endswith(b"0\r\n\r\n")
    running.hang_up()
    front.ask({"op": "configure", "knobs": KNOBS})
