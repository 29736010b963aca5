"""The official client, unchanged, against `dstune serve` on the bundled model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from serving import MODEL, Served, serving, wait_for

USER: Any = [{"role": "user", "content": "def add(a, b):"}]
KEY = "sk-test"


@pytest.fixture(scope="module")
def client(small_server: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{small_server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One request at a time, none waits, with a key and a rate limit."""
    path: Path = tmp_path_factory.mktemp("key") / "key.txt"
    path.write_text(KEY + "\n")
    with serving(
        "--api-key-file", str(path), "--rate-limit", "6", "--max-waiting", "0",
        "--set", "max_num_seqs=1",
    ) as server:  # fmt: skip
        yield server


@pytest.fixture
def guarded_client(guarded: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{guarded.url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


def complete(client: OpenAI, **fields: Any) -> Any:
    return client.completions.create(
        **{"model": MODEL, "prompt": "import os\n", "max_tokens": 8, "temperature": 0, **fields}
    )


def chat(client: OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(
        **{"model": MODEL, "messages": USER, "max_tokens": 8, "temperature": 0, **fields}
    )


def test_the_model_is_listed(client: OpenAI) -> None:
    assert [one.id for one in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_a_completion_and_its_stream_agree(client: OpenAI) -> None:
    whole = complete(client)
    chunks = list(complete(client, stream=True, stream_options={"include_usage": True}))
    streamed = "".join(one.choices[0].text for one in chunks if one.choices)
    assert whole.object == chunks[0].object == "text_completion"
    assert whole.choices[0].text == streamed != ""
    assert whole.choices[0].finish_reason == "length"
    assert [one.choices[0].finish_reason for one in chunks if one.choices][-1] == "length"
    assert (whole.usage.completion_tokens, whole.usage.prompt_tokens) == (8, 10)
    assert chunks[-1].usage.completion_tokens == 8 and not chunks[-1].choices
    assert chunks[-1].usage.total_tokens == 18
    assert all(one.usage is None for one in chunks[:-1])
    assert len({one.id for one in chunks}) == 1


def test_a_chat_and_its_stream_agree(client: OpenAI) -> None:
    whole = chat(client)
    chunks = list(chat(client, stream=True))
    assert whole.object == "chat.completion" and chunks[0].object == "chat.completion.chunk"
    assert whole.choices[0].message.role == chunks[0].choices[0].delta.role == "assistant"
    streamed = "".join(one.choices[0].delta.content or "" for one in chunks)
    assert whole.choices[0].message.content == streamed != ""
    assert chunks[-1].choices[0].finish_reason == "length"
    assert all(one.usage is None for one in chunks)
    assert whole.usage.completion_tokens == 8
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 8


def test_an_answer_can_be_sent_back_as_part_of_the_next_question(client: OpenAI) -> None:
    answer = chat(client).choices[0].message
    further = [*USER, answer.model_dump(), {"role": "user", "content": "and then?"}]
    assert chat(client, messages=further).usage.prompt_tokens > chat(client).usage.prompt_tokens


def test_the_clients_own_stream_helper_works(client: OpenAI) -> None:
    text = chat(client).choices[0].message.content
    with client.chat.completions.stream(
        model=MODEL, messages=USER, temperature=0, stop=text[4:6]
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "content.delta" in kinds
    assert final.choices[0].message.content == text[: text.index(text[4:6])]
    assert final.choices[0].finish_reason == "stop"


def test_a_stop_text_ends_the_answer_before_it(client: OpenAI) -> None:
    text = complete(client, max_tokens=32).choices[0].text
    stop = text[9:12]
    for is_streamed in (False, True):
        answer = complete(client, max_tokens=32, stop=[stop, "never"], stream=is_streamed)
        choices = [one.choices[0] for one in answer] if is_streamed else [answer.choices[0]]
        assert "".join(one.text for one in choices) == text[: text.index(stop)]
        assert choices[-1].finish_reason == "stop"


def test_a_seed_gives_the_same_text_again_and_another_another(client: OpenAI) -> None:
    def texts(seed: int | None, **fields: Any) -> list[str]:
        made = complete(client, temperature=1, seed=seed, max_tokens=24, **fields)
        return [one.text for one in made.choices]

    assert texts(7) == texts(7)
    assert texts(7) != texts(8)
    assert texts(None) != texts(None)
    assert texts(7, n=3) == texts(7, n=3)
    assert len(set(texts(7, n=3))) == 3


def test_n_choices_come_with_their_own_index(client: OpenAI) -> None:
    whole = chat(client, n=4, temperature=1, seed=1)
    assert [one.index for one in whole.choices] == [0, 1, 2, 3]
    assert whole.usage.completion_tokens == 32
    texts = dict.fromkeys(range(4), "")
    ends = {}
    for chunk in chat(client, n=4, temperature=1, seed=1, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends[choice.index] = choice.finish_reason
    assert list(texts.values()) == [one.message.content for one in whole.choices]
    assert set(ends.values()) == {"length"}


def test_a_batch_of_prompts_has_a_choice_each(client: OpenAI) -> None:
    both = complete(client, prompt=["import os\n", "class A"])
    assert [one.index for one in both.choices] == [0, 1]
    for index, prompt in enumerate(("import os\n", "class A")):
        assert both.choices[index].text == complete(client, prompt=prompt).choices[0].text


def test_logprobs_of_a_completion(client: OpenAI) -> None:
    choice = complete(client, logprobs=3, max_tokens=4).choices[0]
    found = choice.logprobs
    assert "".join(found.tokens) == choice.text
    assert len(found.token_logprobs) == len(found.top_logprobs) == len(found.text_offset) == 4
    for token, logprob, top in zip(
        found.tokens, found.token_logprobs, found.top_logprobs, strict=True
    ):
        # greedy: what was chosen is the likeliest
        assert logprob <= 0 and len(top) >= 3
        assert top[token] == pytest.approx(logprob) == max(top.values())


def test_logprobs_of_a_chat(client: OpenAI) -> None:
    whole = chat(client, logprobs=True, top_logprobs=2, max_tokens=4).choices[0]
    content = whole.logprobs.content
    assert len(content) == 4
    assert "".join(one.token for one in content) == whole.message.content
    assert all(one.logprob == pytest.approx(one.top_logprobs[0].logprob) for one in content)
    chunks = chat(client, logprobs=True, top_logprobs=2, max_tokens=4, stream=True)
    streamed = [
        one
        for chunk in chunks
        for choice in chunk.choices
        if choice.logprobs
        for one in choice.logprobs.content
    ]
    assert [one.token for one in streamed] == [one.token for one in content]
    assert chat(client, logprobs=True, max_tokens=2).choices[0].logprobs.content[0].bytes


def test_extras_of_vllm_and_of_dstune(client: OpenAI) -> None:
    extra = {"return_token_ids": True, "ignore_eos": True, "top_k": 1, "min_p": 0.1}
    chunks = list(
        complete(client, prompt=[105, 109], stream=True, extra_body=extra, max_tokens=5,
                 stream_options={"include_usage": True})
    )  # fmt: skip
    ids = [one.choices[0].token_ids for one in chunks if one.choices]
    assert [len(one) for one in ids] == [1] * 5
    assert chunks[-1].dstune["queue_ns"] >= 0
    assert chunks[-1].dstune["precision"] == "bf16"


def test_a_prompt_seen_before_is_taken_from_the_cache(client: OpenAI) -> None:
    prompt = [40 + index % 60 for index in range(100)]
    assert complete(client, prompt=prompt).usage.prompt_tokens_details.cached_tokens == 0
    assert complete(client, prompt=prompt).usage.prompt_tokens_details.cached_tokens >= 80


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"n": 5}, "n", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": 10**6}, "max_tokens", "context_length_exceeded"),
        ({"prompt": [1] * 256}, "prompt", "context_length_exceeded"),
        ({"prompt": ""}, "prompt", "invalid_value"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "unsupported_parameter"),
        ({"extra_body": {"nonsense": 1}}, "nonsense", "unknown_parameter"),
    ],
)
def test_a_bad_request_names_its_parameter(
    client: OpenAI, fields: dict[str, Any], param: str, code: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, **fields)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert caught.value.type == "invalid_request_error"


def test_another_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        chat(client, model="gpt-4o")
    assert caught.value.code == "model_not_found"


def test_a_deadline_is_504(client: OpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        complete(client, max_tokens=200, extra_body={"timeout_s": 0.05, "ignore_eos": True})
    assert caught.value.status_code == 504


def test_a_deadline_within_a_stream_is_an_error(client: OpenAI) -> None:
    stream = complete(
        client, max_tokens=240, stream=True, extra_body={"timeout_s": 0.3, "ignore_eos": True}
    )
    with pytest.raises(openai.APIError, match=r"within 0\.3 s"):
        for _ in stream:
            pass


def test_a_wrong_key_is_an_authentication_error(guarded: Served) -> None:
    with (
        OpenAI(base_url=f"{guarded.url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        complete(stranger)
    assert guarded.get("/health").status == 200
    assert guarded.get("/metrics").status == 401


def test_a_full_queue_is_503_with_a_time_to_come_back(guarded_client: OpenAI) -> None:
    stream = complete(guarded_client, max_tokens=2000, stream=True, extra_body={"ignore_eos": True})
    next(stream)
    with pytest.raises(openai.InternalServerError) as caught:
        complete(guarded_client)
    assert caught.value.status_code == 503
    assert int(caught.value.response.headers["retry-after"]) >= 1
    stream.close()

    def is_taken() -> bool:
        try:
            return bool(complete(guarded_client).choices)
        except (openai.InternalServerError, openai.RateLimitError):
            return False

    assert wait_for(is_taken, 10)


def test_too_many_requests_are_429_with_a_time_to_come_back(guarded_client: OpenAI) -> None:
    with pytest.raises(openai.RateLimitError) as caught:
        for _ in range(40):
            complete(guarded_client, max_tokens=1)
    assert int(caught.value.response.headers["retry-after"]) >= 1


def test_the_clients_own_retry_comes_through(guarded: Served) -> None:
    """It waits as Retry-After says, and then there is room."""
    with OpenAI(base_url=f"{guarded.url}/v1", api_key=KEY, max_retries=5) as patient:
        for _ in range(14):
            assert complete(patient, max_tokens=1).usage.completion_tokens == 1
