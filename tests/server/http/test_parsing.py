"""Reading a request: every rule of what is carried out, refused, and passed over."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from dstune.architecture import shape_from_config
from dstune.model.loading.folder import folder_tokenizer
from dstune.model.loading.open import bundled_folder
from dstune.server.http.ask import Ask, ModelFacts, parse_chat, parse_completion
from dstune.server.http.refusal import Refusal

LENGTH = 128


@pytest.fixture(scope="module")
def model() -> ModelFacts:
    folder = bundled_folder("tiny-deepseek")
    config = json.loads((folder / "config.json").read_text())
    tokenizer = folder_tokenizer(folder, shape_from_config(config, "tiny-deepseek"))
    return ModelFacts("tiny-deepseek", LENGTH, 264, tokenizer, created=0)


def completion(model: ModelFacts, /, **fields: Any) -> Ask:
    body = {"model": model.name, "prompt": "Hello", **fields}
    return parse_completion(json.dumps(body).encode(), model)


def chat(model: ModelFacts, /, content: Any = "Hello", **fields: Any) -> Ask:
    messages = [{"role": "user", "content": content}]
    body = {"model": model.name, "messages": messages, **fields}
    return parse_chat(json.dumps(body).encode(), model)


def refusal_of(body: bytes, model: ModelFacts, parse: Any = parse_completion) -> Refusal:
    with pytest.raises(Refusal) as caught:
        parse(body, model)
    # whatever is wrong: an error object, short, with the status that is raised
    error = json.loads(caught.value.body())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert len(caught.value.body()) < 1500
    return caught.value


def refused(model: ModelFacts, /, **fields: Any) -> Refusal:
    body = {"model": model.name, "prompt": "Hello", **fields}
    return refusal_of(json.dumps(body).encode(), model)


def refused_chat(model: ModelFacts, messages: Any, **fields: Any) -> Refusal:
    body = {"model": model.name, "messages": messages, **fields}
    return refusal_of(json.dumps(body).encode(), model, parse_chat)


def test_a_bare_completion_gets_openais_defaults(model: ModelFacts) -> None:
    ask = completion(model)
    assert model.tokenizer is not None
    assert ask == Ask(
        is_chat=False,
        prompts=(tuple(model.tokenizer.encode("Hello")),),
        n=1,
        max_tokens=16,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        seed=None,
        stop=(),
        stop_token_ids=(),
        ignore_eos=False,
        num_logprobs=None,
        echo=False,
        stream=False,
        include_usage=False,
        return_token_ids=False,
        timeout_s=None,
    )


def test_every_parameter_arrives(model: ModelFacts) -> None:
    ask = completion(
        model, prompt=[1, 2, 3], n=4, max_tokens=7, temperature=0, top_k=5, top_p=0.5, min_p=0.1,
        seed=-3, stop=["a", "b"], stop_token_ids=[9], ignore_eos=True, logprobs=20, stream=True,
        stream_options={"include_usage": True}, return_token_ids=True, timeout_s=2,
    )  # fmt: skip
    assert ask == Ask(
        False, ((1, 2, 3),), 4, 7, 0.0, 5, 0.5, 0.1, -3, ("a", "b"), (9,), True, 20, False,
        True, True, True, 2.0,
    )  # fmt: skip


def test_null_means_not_given(model: ModelFacts) -> None:
    names = ("max_tokens", "temperature", "n", "stop", "seed", "logit_bias", "tools", "suffix")
    assert completion(model, **dict.fromkeys(names)) == completion(model)


@pytest.mark.parametrize(
    "prompt",
    ["Hi", ["Hi", "Hi"], [72, 105], [[72, 105], [72]]],
    ids=["text", "texts", "ids", "lists"],
)
def test_the_four_forms_of_a_prompt(model: ModelFacts, prompt: Any) -> None:
    ask = completion(model, prompt=prompt)
    is_batch = not isinstance(prompt, str) and not isinstance(prompt[0], int)
    assert len(ask.prompts) == (2 if is_batch else 1)
    assert ask.prompts[0][-2:] == (72, 105)


def test_nul_and_special_token_text_are_plain_text(model: ModelFacts) -> None:
    assert completion(model, prompt="a\0b").prompts[0][-3:] == (97, 0, 98)
    assert len(completion(model, prompt="<|user|>").prompts[0]) >= len("<|user|>")
    assert len(chat(model, "<|user|>").prompts[0]) >= len("<|user|>")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 5}, "n"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": "1"}, "n"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.01}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"seed": 1 << 63}, "seed"),
        ({"seed": "x"}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", 1]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": "a" * 257}, "stop"),
        ({"stop_token_ids": [264]}, "stop_token_ids"),
        ({"stop_token_ids": [True]}, "stop_token_ids"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [[], [1]]}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": 7}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [1, True]}, "prompt"),
        ({"prompt": [1, 2.0]}, "prompt"),
        ({"prompt": [[1], [None]]}, "prompt"),
        ({"prompt": [[[1]]]}, "prompt"),
        ({"prompt": [264]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10**25]}, "prompt"),
        ({"prompt": ["a"] * 17}, "prompt"),
        ({"model": None}, "model"),
        ({"model": 5}, "model"),
        ({"nonsense": 1}, "nonsense"),
    ],
    ids=lambda value: json.dumps(value)[:40],
)  # fmt: skip
def test_a_wrong_value_is_400_and_names_the_parameter(
    model: ModelFacts, fields: dict[str, Any], param: str
) -> None:
    refusal = refused(model, **fields)
    assert (refusal.status, refusal.param) == (400, param)
    assert param in refusal.message


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function"}]},
        {"response_format": {"type": "json_object"}},
        {"logit_bias": {"5": 1}},
        {"frequency_penalty": 0.5},
        {"presence_penalty": False},
        {"best_of": 2},
        {"suffix": "x"},
        {"audio": {}},
        {"chat_template": "{{ 1 }}"},
        {"chat_template_kwargs": {}},
        {"repetition_penalty": 1.1},
        {"guided_json": {}},
        {"min_tokens": 3},
        {"prompt_logprobs": 1},
        {"logprob_token_ids": [1]},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_would_change_the_answer_is_refused(model: ModelFacts, fields: dict[str, Any]) -> None:
    refusal = refused(model, **fields)
    (name,) = fields
    assert (refusal.status, refusal.param) == (400, name)
    assert refusal.code == "unsupported_parameter"


def test_what_would_not_change_it_is_accepted(model: ModelFacts) -> None:
    ask = completion(
        model, user="me", metadata={"a": "b"}, store=True, service_tier="auto", best_of=1,
        frequency_penalty=0.0, presence_penalty=0, logit_bias={}, tools=[], tool_choice="auto",
        response_format={"type": "text"}, suffix="", request_id="same", repetition_penalty=1.0,
    )  # fmt: skip
    assert ask == completion(model)


def test_a_misspelt_parameter_gets_a_hint(model: ModelFacts) -> None:
    assert "did you mean max_tokens?" in refused(model, max_token=5).message


def test_another_model_is_404(model: ModelFacts) -> None:
    refusal = refused(model, model="gpt-4o")
    assert (refusal.status, refusal.code) == (404, "model_not_found")
    assert "tiny-deepseek" in refusal.message


def test_the_context_bounds_prompt_and_answer(model: ModelFacts) -> None:
    assert completion(model, prompt=[1] * 120, max_tokens=8).max_tokens == 8
    assert completion(model, prompt=[1] * 120).max_tokens == 8  # the default is clipped
    assert completion(model, prompt=[1] * (LENGTH - 1)).max_tokens == 1
    over = refused(model, prompt=[1] * 120, max_tokens=9)
    assert (over.status, over.param, over.code) == (400, "max_tokens", "context_length_exceeded")
    long = refused(model, prompt=[1] * LENGTH)
    assert (long.status, long.param, long.code) == (400, "prompt", "context_length_exceeded")
    assert str(LENGTH) in long.message and str(LENGTH - 1) in long.message
    batch = completion(model, prompt=[[1], [1] * 124], max_tokens=4)
    assert batch.max_tokens == 4
    assert refused(model, prompt=[[1], [1] * 124], max_tokens=5).status == 400


def test_a_text_far_too_long_is_refused_by_its_beginning(model: ModelFacts) -> None:
    for text in ("word " * 400_000, "\U0001f600" * 200, "x" * 161):
        long = refused(model, prompt=text)
        assert (long.status, long.param, long.code) == (400, "prompt", "context_length_exceeded")
        assert refused_chat(model, [{"role": "user", "content": text}]).param == "messages"
    assert "at least 256 tokens" in refused(model, prompt="x" * 2_000_000).message
    assert "is 129 tokens" in refused(model, prompt="x" * 129).message


def test_a_chat_may_go_on_to_the_end_of_the_context(model: ModelFacts) -> None:
    ask = chat(model)
    assert ask.is_chat and ask.max_tokens == LENGTH - len(ask.prompts[0])
    assert chat(model, max_completion_tokens=3).max_tokens == 3
    long = refused_chat(model, [{"role": "user", "content": "x" * 300}])
    assert (long.param, long.code) == ("messages", "context_length_exceeded")


def test_logprobs_of_a_chat(model: ModelFacts) -> None:
    assert chat(model).num_logprobs is None
    assert chat(model, logprobs=True).num_logprobs == 0
    assert chat(model, logprobs=True, top_logprobs=5).num_logprobs == 5
    messages = [{"role": "user", "content": "a"}]
    assert refused_chat(model, messages, top_logprobs=5).param == "top_logprobs"
    assert refused_chat(model, messages, logprobs=True, top_logprobs=21).param == "top_logprobs"
    assert refused_chat(model, messages, logprobs=2).param == "logprobs"
    assert refused_chat(model, messages, echo=True).param == "echo"


def test_messages_as_the_sdk_sends_its_answers_back(model: ModelFacts) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c", "refusal": None, "annotations": [], "tool_calls": []},
        {"role": "user", "content": "d", "name": "Ann"},
    ]
    body = json.dumps({"model": model.name, "messages": messages}).encode()
    assert model.tokenizer is not None
    shown = model.tokenizer.decode(parse_chat(body, model).prompts[0])
    assert "a\nb" in shown and "Be brief." in shown and "d" in shown


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        "Hello",
        {},
        ["Hello"],
        [{}],
        [{"content": "a"}],
        [{"role": "user"}],
        [{"role": "user", "content": ""}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": 5}],
        [{"role": 5, "content": "a"}],
        [{"role": [], "content": "a"}],
        [{"role": "tool", "content": "a", "tool_call_id": "x"}],
        [{"role": "user", "content": "a", "name": 5}],
        [{"role": "user", "content": "a", "extra": 1}],
        [{"role": "assistant", "content": "a", "tool_calls": [{"id": "x"}]}],
        [{"role": "user", "content": ["a"]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}],
        [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}],
        [{"role": "user", "content": [{"type": ["text"], "text": "a"}]}],
        [{"role": "user", "content": "a"}] * 2049,
    ],
    ids=lambda value: json.dumps(value)[:50],
)
def test_messages_that_are_none_are_refused(model: ModelFacts, messages: Any) -> None:
    refusal = refused_chat(model, messages)
    assert (refusal.status, refusal.param) == (400, "messages")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  ",
        b"nonsense",
        b"[]",
        b'"text"',
        b"null",
        b"{",
        b'{"model": "tiny-deepseek", "prompt": "a"',
        b'{"model": "tiny-deepseek", "prompt": "a"} x',
        b"\xef\xbb\xbf{}",
        b"\xff\xfe{\x00}\x00",
        b'{"model": "tiny-deepseek", "prompt": "\xed\xa0\x80"}',
        b'{"model": "tiny-deepseek", "prompt": "\xc3"}',
        b'{"model": "tiny-deepseek", "prompt": "\\ud800"}',
        b'{"model": "tiny-deepseek", "prompt": "\\uDFFFx"}',
        b'{"model": "tiny-deepseek", "prompt": "a", "user": "\\ud83d"}',
        b'{"model": "tiny-deepseek", "prompt": "a", "metadata": {"\\ud83d": 1}}',
        b'{"model": "tiny-deepseek", "prompt": "a", "temperature": NaN}',
        b'{"model": "tiny-deepseek", "prompt": "a", "temperature": -Infinity}',
        b'{"model": "tiny-deepseek", "prompt": "a", "temperature": 1e999}',
        b'{"model": "tiny-deepseek", "prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}",
        b'{"model": "tiny-deepseek", "prompt": "a", "temperature": ' + b"9" * 400 + b"}",
        b'{"model": "tiny-deepseek", "prompt": "a", "prompt": "b"}',
        b'{"model": "tiny-deepseek", "prompt": "a", "metadata": {"x": 1, "x": 1}}',
        b'{"model": "tiny-deepseek", "prompt": "a", "metadata": ' + b"[" * 40 + b"]" * 40 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"model": "tiny-deepseek", "prompt": "a\nb"}',
        b'{"' + b"x" * 1_000_000 + b'": 1}',
        b'{"model": "' + b"x" * 1_000_000 + b'", "prompt": "a"}',
        b'{"model": "tiny-deepseek", "prompt": "a", "stream": true, "stream_options": {"'
        + b"x" * 100_000 + b'": 1}}',
    ],
    ids=lambda body: repr(body[:60]) + f"+{len(body)}",
)  # fmt: skip
def test_what_is_no_json_object_is_refused_briefly(model: ModelFacts, body: bytes) -> None:
    assert refusal_of(body, model).status in (400, 404)
    assert refusal_of(body, model, parse_chat).status in (400, 404)


def test_a_pair_of_surrogates_is_a_character(model: ModelFacts) -> None:
    body = b'{"model": "tiny-deepseek", "prompt": "\\ud83d\\ude00"}'
    assert model.tokenizer is not None
    assert model.tokenizer.decode(parse_completion(body, model).prompts[0]) == "\U0001f600"


def test_brackets_inside_a_text_are_no_nesting(model: ModelFacts) -> None:
    for text in ("[" * 100, '"[\\{' * 30, "\\" * 99 + "[" * 60):
        assert completion(model, prompt=text[:100]).prompts


def test_reading_a_hostile_body_takes_no_longer_than_an_honest_one(model: ModelFacts) -> None:
    """Bodies that make a careless scanner quadratic end within the time of the test."""
    size = 1_000_000
    for body in (b'"\\"' * (size // 3), b"\\" * size, b'{"a": "' + b"\\" * size, b"[]" * size):
        assert refusal_of(b"[]" * 33 + body, model).status == 400


def test_a_model_without_a_tokenizer_takes_token_ids(model: ModelFacts) -> None:
    bare = replace(model, tokenizer=None)
    assert completion(bare, prompt=[1, 2]).prompts == ((1, 2),)
    assert refused(bare).param == "prompt"
    assert refused(bare, prompt=[1], stop="x").param == "stop"
    assert refused_chat(bare, [{"role": "user", "content": "a"}]).code == "no_chat_template"
