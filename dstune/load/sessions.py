"""Load: requests become turns of sessions whose context grows.

What the model said to an earlier turn is not known beforehand, and would differ from run to run.
So later turns carry a planned answer of the planned length in its place: the text that follows
their earlier prompt in the corpus. A server sees the growth of a real conversation; only the
answer's own tokens are not in its prefix cache, the prompts before the first of them are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from dstune.load.workload import SESSIONS, Asked, Corpus, draw_lengths, repetition_rng
from dstune.profile.model import Workload

NS_PER_S = 1_000_000_000


@dataclass(frozen=True)
class Turn:
    """Where a request stands in its session."""

    session: int
    turn: int
    think_ns: int  # after the answer before it; 0 for the first turn


def draw_turns(workload: Workload, repetition: int) -> list[Turn]:
    """A turn for each request of a repetition; the last session may be cut short."""
    count = workload.num_requests
    rng = repetition_rng(workload, repetition, SESSIONS)
    lengths = draw_lengths(workload.turns, count, rng)
    thinks_s = rng.exponential(workload.think_time_s, count).tolist()
    places = [(session, turn) for session, length in enumerate(lengths) for turn in range(length)]
    return [
        Turn(session, turn, round(think_s * NS_PER_S) if turn else 0)
        for (session, turn), think_s in zip(places[:count], thinks_s, strict=True)
    ]


def grow(asked: Iterable[Asked], turns: Iterable[Turn], corpus: Corpus) -> Iterator[Asked]:
    """Each request with the earlier prompts and planned answers of its session before its own."""
    context: tuple[int, ...] = ()
    for one, turn in zip(asked, turns, strict=True):
        if turn.turn == 0:
            context = ()
        own = one.prompt_token_ids
        yield replace(one, prompt_token_ids=context + own)
        context += own + corpus.after(one.place, len(own), one.output_tokens)
