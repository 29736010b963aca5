"""Load: a profile's workload and arrivals become the plan of one repetition, or of a warm-up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from dstune.errors import DstuneError, UsageError
from dstune.load.anomalies import mix_in
from dstune.load.arrivals import draw_offsets_ns
from dstune.load.plan import LoadPlan, PlannedRequest
from dstune.load.sessions import Turn, draw_turns, grow
from dstune.load.trace import ask_as_recorded
from dstune.load.workload import ANOMALIES, Asked, Corpus, cut, draw_requests, repetition_rng
from dstune.profile.model import ArrivalKind, Profile

WARMUP_REQUESTS = 4
WARMUP_PROMPT_TOKENS = 256  # at most: warm-up is for code paths and memory, not for statistics
WARMUP_OUTPUT_TOKENS = 8
MOST_PROMPT_TOKENS = 1 << 26  # of a plan, about 1 GB with the bodies made of it

Placed = tuple[list[Asked], list[Turn], list[int | None]]


def build_plan(
    profile: Profile, repetition: int, tokens: Sequence[int], *, with_anomalies: bool = False
) -> LoadPlan:
    """The plan of one repetition: equal arguments give an equal plan, on every machine.

    Raises `UsageError` for a load whose prompts do not fit into memory.
    """
    _check(tokens)
    work, arrivals = profile.workload, profile.arrivals
    corpus = Corpus(tokens, work.seed)
    place = _as_recorded if arrivals.kind is ArrivalKind.TRACE else _drawn
    asked, turns, offsets_ns = place(profile, repetition, corpus)
    prefix = corpus.prefix(work.shared_prefix_tokens)
    requests: Sequence[PlannedRequest] = tuple(
        PlannedRequest(
            request_id=f"r{repetition}-{index:05d}",
            offset_ns=offset_ns,
            prompt_token_ids=prefix + one.prompt_token_ids,
            output_tokens=one.output_tokens,
            seed=one.seed,
            session_id=f"s{repetition}-{turn.session:05d}" if work.has_sessions else "",
            turn=turn.turn,
            think_ns=turn.think_ns,
        )
        for index, (one, turn, offset_ns) in enumerate(zip(asked, turns, offsets_ns, strict=True))
    )
    if with_anomalies and work.anomalies:
        rng = repetition_rng(work, repetition, ANOMALIES)
        requests = mix_in(requests, work.anomalies, rng)
    is_closed = arrivals.kind is ArrivalKind.CONCURRENCY
    return LoadPlan(
        tuple(requests),
        concurrency=arrivals.concurrency,
        # an open loop ends by itself: its last arrival lies within the duration
        duration_s=arrivals.duration if is_closed else None,
    )


def closed_loop_requests(concurrency: int, duration_s: float, fastest_request_s: float) -> int:
    """How many requests last for sure while so many are in flight for so long."""
    return concurrency * (math.ceil(duration_s / fastest_request_s) + 1)


def build_warmup(profile: Profile, tokens: Sequence[int]) -> LoadPlan:
    """A few short requests at once, sent before measuring and kept out of the samples."""
    _check(tokens)
    work = profile.workload
    count = min(WARMUP_REQUESTS, work.num_requests)
    prompt = min(WARMUP_PROMPT_TOKENS, work.prompt_tokens.longest)
    output = min(WARMUP_OUTPUT_TOKENS, work.output_tokens.longest)
    requests = tuple(
        PlannedRequest(
            request_id=f"warmup-{index}",
            offset_ns=0,
            prompt_token_ids=cut(tokens, index * len(tokens) // count, prompt),
            output_tokens=output,
            seed=index,
        )
        for index in range(count)
    )
    return LoadPlan(requests)


def _drawn(profile: Profile, repetition: int, corpus: Corpus) -> Placed:
    """Requests, their turns and offsets as workload and arrivals say."""
    work = profile.workload
    rng = repetition_rng(work, repetition)
    asked: Iterable[Asked] = draw_requests(work, repetition, corpus, rng)
    turns = draw_turns(work, repetition)
    num_sessions = turns[-1].session + 1
    starts = draw_offsets_ns(profile.arrivals, work.num_requests, rng, num_sessions)
    offsets_ns = [None if one.turn else starts[one.session] for one in turns]
    if work.has_sessions:
        asked = grow(asked, turns, corpus)
    return _within_memory(asked, work.shared_prefix_tokens), turns, offsets_ns


def _as_recorded(profile: Profile, repetition: int, corpus: Corpus) -> Placed:
    """The same as the rows of the trace say."""
    work = profile.workload
    rows = profile.arrivals.rows()[: work.num_requests]
    asked = ask_as_recorded(rows, repetition, corpus, repetition_rng(work, repetition))
    turns = [Turn(index, 0, 0) for index in range(len(rows))]
    return _within_memory(asked, 0), turns, [row.offset_ns for row in rows]


def _within_memory(asked: Iterable[Asked], prefix_tokens: int) -> list[Asked]:
    found: list[Asked] = []
    num_tokens = 0
    for one in asked:
        num_tokens += prefix_tokens + len(one.prompt_token_ids)
        if num_tokens > MOST_PROMPT_TOKENS:
            raise UsageError(
                f"the prompts of this load have more than {MOST_PROMPT_TOKENS:,} tokens, after "
                f"{len(found):,} requests: ask for fewer with workload.num_requests or a duration"
            )
        found.append(one)
    return found


def _check(tokens: Sequence[int]) -> None:
    if not tokens:
        raise DstuneError("the model's tokenizer made no tokens of the bundled text")
