"""Load: a profile's workload and arrivals become the plan of one repetition, or of a warm-up."""

from __future__ import annotations

from collections.abc import Sequence

from dstune.errors import DstuneError
from dstune.load.arrivals import draw_offsets_ns
from dstune.load.plan import LoadPlan, PlannedRequest
from dstune.load.workload import cut, draw_requests, repetition_rng
from dstune.profile.model import Profile

WARMUP_REQUESTS = 4
WARMUP_PROMPT_TOKENS = 256  # at most: warm-up is for code paths and memory, not for statistics
WARMUP_OUTPUT_TOKENS = 8


def build_plan(profile: Profile, repetition: int, tokens: Sequence[int]) -> LoadPlan:
    """The plan of one repetition: equal arguments give an equal plan, on every machine."""
    _check(tokens)
    work = profile.workload
    rng = repetition_rng(work, repetition)
    asked = draw_requests(work, repetition, tokens, rng)
    offsets_ns = draw_offsets_ns(profile.arrivals, work.num_requests, rng)
    requests = tuple(
        PlannedRequest(
            request_id=f"r{repetition}-{index:05d}",
            offset_ns=offset_ns,
            prompt_token_ids=one.prompt_token_ids,
            output_tokens=one.output_tokens,
            seed=one.seed,
        )
        for index, (one, offset_ns) in enumerate(zip(asked, offsets_ns, strict=True))
    )
    return LoadPlan(requests, concurrency=profile.arrivals.concurrency)


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


def _check(tokens: Sequence[int]) -> None:
    if not tokens:
        raise DstuneError("the model's tokenizer made no tokens of the bundled text")
