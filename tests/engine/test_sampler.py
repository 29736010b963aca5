"""Log-probabilities that come with the chosen tokens."""

from __future__ import annotations

import pytest
import torch

from dstune.engine.request import Request, SamplingParams
from dstune.engine.sampler import choose_tokens
from dstune.kernels.select import select

VOCAB = 50


def request(**params: object) -> Request:
    return Request("a", (1, 2), SamplingParams(**params), arrival_ns=0)  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_they_are_the_models_own_and_only_for_rows_that_asked(temperature: float) -> None:
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(3)) * 4
    asked = [None, 0, 3, 20]
    requests = [request(num_logprobs=one, temperature=temperature, seed=7) for one in asked]
    choices = choose_tokens(logits.clone(), requests, select("reference", torch.device("cpu")))
    expected = logits.log_softmax(-1)
    for row, (choice, count) in enumerate(zip(choices, asked, strict=True)):
        if count is None:
            assert choice.logprob is None and choice.top_logprobs == ()
            continue
        assert choice.logprob == pytest.approx(float(expected[row, choice.token_id]))
        assert len(choice.top_logprobs) == count
        order = expected[row].argsort(descending=True).tolist()
        assert [one for one, _ in choice.top_logprobs] == order[:count]
        for token_id, logprob in choice.top_logprobs:
            assert logprob == pytest.approx(float(expected[row, token_id]))


def test_more_than_the_vocabulary_is_all_of_it() -> None:
    logits = torch.zeros(1, 5)
    (choice,) = choose_tokens(
        logits, [request(num_logprobs=20)], select("reference", torch.device("cpu"))
    )
    assert sorted(one for one, _ in choice.top_logprobs) == [0, 1, 2, 3, 4]


def test_a_forced_token_has_the_probability_that_the_model_gave_it() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    forced = request(num_logprobs=0, forced_token_ids=(0,), max_tokens=1)
    (choice,) = choose_tokens(logits, [forced], select("reference", torch.device("cpu")))
    assert choice.token_id == 0
    assert choice.logprob == pytest.approx(float(logits.log_softmax(-1)[0, 0]))
