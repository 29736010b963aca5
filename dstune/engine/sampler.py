"""From logits to tokens: each row by its own request's parameters and seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dstune.engine.request import Request
from dstune.kernels.select import Kernels


@dataclass(frozen=True)
class Choice:
    """The token chosen for one row; its log-probability where the request asked for it."""

    token_id: int
    logprob: float | None = None


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
    return [Choice(token, logprobs.get(row)) for row, token in enumerate(token_ids)]


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
) -> dict[int, float]:
    rows = [row for row, request in enumerate(requests) if request.params.with_logprob]
    if not rows:
        return {}
    wanted = logits[rows].log_softmax(dim=-1)
    tokens = torch.tensor([[token_ids[row]] for row in rows], device=logits.device)
    return dict(zip(rows, wanted.gather(1, tokens)[:, 0].tolist(), strict=True))
