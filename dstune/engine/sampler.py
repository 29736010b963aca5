"""From logits to tokens: each row by its own request's parameters and seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dstune.engine.request import Request
from dstune.kernels.select import Kernels

TopLogprobs = tuple[tuple[int, float], ...]
"""(token id, log-probability), the likeliest first."""


@dataclass(frozen=True)
class Choice:
    """The token chosen for one row; log-probabilities where the request asked for them.

    They are the model's own, before temperature and the other sampling parameters.
    """

    token_id: int
    logprob: float | None = None
    top_logprobs: TopLogprobs = ()


def choose_tokens(logits: Tensor, requests: Sequence[Request], kernels: Kernels) -> list[Choice]:
    """One token per row of `logits` [num_rows, vocab_size] fp32.

    Randomness depends on the request's seed and the token's position alone, never on the row.
    """
    if all(request.params.temperature == 0 for request in requests):
        chosen = logits.argmax(dim=-1)
    else:
        chosen = _sample(logits, requests, kernels)
    token_ids = chosen.tolist()
    for row, request in enumerate(requests):
        if request.params.forced_token_ids:
            token_ids[row] = request.params.forced_token_ids[request.num_output_tokens]
    logprobs = _logprobs(logits, token_ids, requests)
    return [Choice(token, *logprobs.get(row, (None, ()))) for row, token in enumerate(token_ids)]


def _sample(logits: Tensor, requests: Sequence[Request], kernels: Kernels) -> Tensor:
    params = [request.params for request in requests]

    def column(values: list[float] | list[int], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=logits.device)

    return kernels.sample(
        logits,
        column([one.temperature for one in params], torch.float32),
        column([one.top_k for one in params], torch.int64),
        column([one.top_p for one in params], torch.float32),
        column([one.min_p for one in params], torch.float32),
        column([one.seed for one in params], torch.int64),
        column([request.num_tokens for request in requests], torch.int64),
    )


def _logprobs(
    logits: Tensor, token_ids: list[int], requests: Sequence[Request]
) -> dict[int, tuple[float, TopLogprobs]]:
    """By row, for the rows that asked: the others cost nothing."""
    counts = {
        row: request.params.num_logprobs
        for row, request in enumerate(requests)
        if request.params.num_logprobs is not None
    }
    if not counts:
        return {}
    wanted = logits[list(counts)].log_softmax(dim=-1)
    tokens = torch.tensor([[token_ids[row]] for row in counts], device=logits.device)
    chosen = wanted.gather(1, tokens)[:, 0].tolist()
    most = min(max(counts.values()), wanted.shape[-1])
    values, ids = wanted.topk(most, dim=-1)
    likeliest = zip(ids.tolist(), values.tolist(), strict=True)
    return {
        row: (logprob, tuple(zip(top_ids[:count], top_values[:count], strict=True)))
        for (row, count), logprob, (top_ids, top_values) in zip(
            counts.items(), chosen, likeliest, strict=True
        )
    }
