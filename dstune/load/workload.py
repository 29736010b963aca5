"""Load: what each request asks, drawn beforehand from a profile's workload.

A repetition has its own seed: the same for every trial, so that trials are compared on the same
prompts; different between repetitions, so that no repetition meets prefixes of the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dstune.profile.model import Distribution, Length, Workload

# streams of one repetition's randomness: what one draws never moves what another draws
REQUESTS, SESSIONS, ANOMALIES = range(3)


@dataclass(frozen=True)
class Asked:
    """One request's prompt and how much it wants back."""

    prompt_token_ids: tuple[int, ...]
    output_tokens: int
    seed: int
    place: int = 0  # of the prompt among those cut from the corpus


def repetition_rng(
    workload: Workload, repetition: int, stream: int = REQUESTS
) -> np.random.Generator:
    """The generator of one repetition: a stream of its own below the profile's seed."""
    return np.random.default_rng(np.random.SeedSequence([workload.seed, repetition, stream]))


def draw_lengths(length: Length, count: int, rng: np.random.Generator) -> list[int]:
    """`count` lengths in tokens, clipped to the distribution's bounds and never below 1."""
    if length.distribution is Distribution.CONSTANT:
        assert length.value is not None
        return [length.value] * count
    assert length.distribution is not Distribution.TRACE, "rows bring their own"
    assert length.max is not None
    low = length.min or 1
    if length.distribution is Distribution.UNIFORM:
        return [int(one) for one in rng.integers(low, length.max, count, endpoint=True)]
    assert length.median is not None and length.sigma is not None
    drawn = rng.lognormal(np.log(length.median), length.sigma, count)
    return [int(one) for one in np.clip(np.rint(drawn), low, length.max)]


def draw_requests(
    workload: Workload, repetition: int, corpus: Corpus, rng: np.random.Generator
) -> Iterator[Asked]:
    """The requests of one repetition, without a shared prefix or an earlier turn.

    Everything random is drawn before the first is yielded.
    """
    count = workload.num_requests
    prompts = draw_lengths(workload.prompt_tokens, count, rng)
    outputs = draw_lengths(workload.output_tokens, count, rng)
    seeds = rng.integers(0, 1 << 31, count).tolist()
    first = repetition * count
    return (
        Asked(corpus.prompt(first + at, prompts[at]), outputs[at], seeds[at], first + at)
        for at in range(count)
    )


class Corpus:
    """The tokens that prompts are cut from, a ring, and where in it each prompt begins.

    Two prompts share a prefix by accident only where they begin at one place, and one shuffle for
    all repetitions repeats no place before the corpus is used up. From then on a prompt's first
    token is another one of the corpus, so that it still begins like no other. A seed above 16 bits
    (one that is drawn is) changes the first tokens as well: two loads of thousands of prompts have
    places in common, and a server that keeps its cache would answer those from there.
    """

    def __init__(self, tokens: Sequence[int], seed: int) -> None:
        self._tokens = tuple(tokens)
        self._starts = np.random.default_rng(seed).permutation(len(self._tokens)).tolist()
        self._kinds = sorted(set(self._tokens))
        self._first_lap = seed >> 16

    def prefix(self, length: int) -> tuple[int, ...]:
        """The tokens that all prompts share."""
        return cut(self._tokens, self._starts[-1], length)

    def prompt(self, place: int, length: int) -> tuple[int, ...]:
        """The prompt at a place; `length` >= 1."""
        lap, at = divmod(place, len(self._starts))
        start: int = self._starts[at]
        found = cut(self._tokens, start, length)
        lap += self._first_lap
        if lap == 0:
            return found
        index = np.searchsorted(self._kinds, found[0])
        return (self._kinds[(int(index) + lap) % len(self._kinds)], *found[1:])

    def after(self, place: int, skipped: int, length: int) -> tuple[int, ...]:
        """How the text goes on behind the first `skipped` tokens of a prompt."""
        return cut(self._tokens, self._starts[place % len(self._starts)] + skipped, length)


def cut(tokens: Sequence[int], start: int, length: int) -> tuple[int, ...]:
    """`length` tokens from `start` on; the corpus is a ring."""
    start %= len(tokens)
    found = tuple(tokens[start : start + length])
    while len(found) < length:
        found += tuple(tokens[: length - len(found)])
    return found
