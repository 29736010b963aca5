"""Log-probabilities of a given text, computed by the very path that serves requests.

Prefill alone would hide an error of the cache, so all but the first tokens of a window are
"generated": each is decoded over the paged cache, then replaced by the text's own next token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dstune.engine.engine import Engine
from dstune.engine.request import SamplingParams


def score_windows(
    engine: Engine,
    windows: Sequence[Sequence[int]],
    num_context_tokens: int,
    report: Callable[[int], None] = lambda num_scored: None,
) -> list[list[float]]:
    """Natural-log probabilities of every window's tokens after its first `num_context_tokens`.

    `report` gets the number of tokens scored so far, after every step.
    """
    scores: dict[str, list[float]] = {}
    for index, window in enumerate(windows):
        forced = tuple(window[num_context_tokens:])
        params = SamplingParams(
            max_tokens=len(forced), ignore_eos=True, forced_token_ids=forced, num_logprobs=0
        )
        engine.add(str(index), tuple(window[:num_context_tokens]), params)
        scores[str(index)] = []
    num_scored = 0
    while engine.has_requests:
        step = engine.step()
        for token in step.tokens if step else ():
            assert token.logprob is not None
            scores[token.request.request_id].append(token.logprob)
            num_scored += 1
        report(num_scored)
    return [scores[str(index)] for index in range(len(windows))]
