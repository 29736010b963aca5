"""Load: what each request asks, drawn beforehand from a profile's workload.

A repetition has its own seed: the same for every trial, so that trials are compared on the same
prompts; different between repetitions, so that no repetition meets prefixes of the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dstune.profile.model import Distribution, Length, Workload


@dataclass(frozen=True)
class Asked:
    """One request's prompt and how much it wants back."""

    prompt_token_ids: tuple[int, ...]
    output_tokens: int
    seed: int


def repetition_rng(workload: Workload, repetition: int) -> np.random.Generator:
    """The generator of one repetition: a stream of its own below the profile's seed."""
    return np.random.default_rng(np.random.SeedSequence([workload.seed, repetition]))


def draw_lengths(length: Length, count: int, rng: np.random.Generator) -> list[int]:
    """`count` lengths in tokens, clipped to the distribution's bounds and never below 1."""
    if length.distribution is Distribution.CONSTANT:
        assert length.value is not None
        return [length.value] * count
    assert length.max is not None
    low = length.min or 1
    if length.distribution is Distribution.UNIFORM:
        return [int(one) for one in rng.integers(low, length.max, count, endpoint=True)]
    assert length.median is not None and length.sigma is not None
    drawn = rng.lognormal(np.log(length.median), length.sigma, count)
    return [int(one) for one in np.clip(np.rint(drawn), low, length.max)]


def draw_requests(
    workload: Workload, repetition: int, tokens: Sequence[int], rng: np.random.Generator
) -> list[Asked]:
    """The requests of one repetition; `tokens` are the ids of the corpus, in order."""
    count = workload.num_requests
    prompts = draw_lengths(workload.prompt_tokens, count, rng)
    outputs = draw_lengths(workload.output_tokens, count, rng)
    seeds = rng.integers(0, 1 << 31, count).tolist()
    starts = _starts(workload, len(tokens))
    prefix = cut(tokens, int(starts[-1]), workload.shared_prefix_tokens)
    asked = []
    for index in range(count):
        start = int(starts[(repetition * count + index) % len(starts)])
        own = cut(tokens, start, prompts[index])
        asked.append(Asked(prefix + own, outputs[index], seeds[index]))
    return asked


def _starts(workload: Workload, num_tokens: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Where prompts begin in the corpus: one shuffle for all repetitions.

    Two prompts share a prefix by accident only where they begin at one place, and a shuffle
    repeats no place before the corpus is used up.
    """
    return np.random.default_rng(workload.seed).permutation(num_tokens)


def cut(tokens: Sequence[int], start: int, length: int) -> tuple[int, ...]:
    """`length` tokens from `start` on; the corpus is a ring."""
    num_tokens = len(tokens)
    return tuple(tokens[(start + at) % num_tokens] for at in range(length))
