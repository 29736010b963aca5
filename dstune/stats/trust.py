"""Stats: the trust checks. The evidence of a repetition becomes remarks, remarks a verdict.

A remark names its evidence in figures and what to do. One whose code is in `VOIDING` means that
the figures are about something else than the target: such a trial is not ranked, such a load test
ends inconclusive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from dstune.measure.host import is_busy, is_contended
from dstune.measure.record import (
    Claim,
    HostLoad,
    Remark,
    RemarkCode,
    Repetition,
    SloCheck,
)
from dstune.stats.claims import claim, num_needed
from dstune.stats.evidence import Evidence
from dstune.stats.intervals import percentile
from dstune.stats.metrics import counted, is_ok, latencies_s
from dstune.stats.trust_client import client_lag, closed_loop, rate_short, schedule_lag
from dstune.stats.trust_server import cold_start, prefix_contamination, ttft_disagrees

MOST_FAILED = 0.01
"""Of the counted requests: beyond it, the latencies of those that ended ok are of a chosen few."""
MOST_PROMPT_DIFFERENCE = 0.05
"""Median of |server's - planned| / planned prompt tokens: prefill is another one beyond it."""


def check_trust(evidence: Evidence) -> tuple[Remark, ...]:
    """Every reason to trust one repetition less, in a fixed order."""
    return tuple(remark for check in CHECKS if (remark := check(evidence)) is not None)


def pooled_remarks(
    repetitions: Sequence[Repetition], slo: Sequence[SloCheck] = ()
) -> tuple[Remark, ...]:
    """The remarks of a trial: each code once, with its first message and how many have it.

    Samples are pooled over repetitions, so whether they suffice is told by the pooled `slo`.
    """
    num = len(repetitions)
    found = [remark for code in RemarkCode if code not in _POOLED
             if (remark := _shared(code, repetitions)) is not None]  # fmt: skip
    hosts = [one.host for one in repetitions if one.host is not None]
    alone = [one for one in repetitions[0].remarks if one.code is RemarkCode.TOO_FEW_SAMPLES] \
        if num == 1 and not slo else []  # fmt: skip
    few = [_few(one.key, one.num_samples, one.num_needed, one.num_over)
           for one in slo if one.claim is Claim.INCONCLUSIVE and one.num_samples]  # fmt: skip
    pooled = _contended(hosts), _busy(hosts, num, without_contended=True), _too_few(few)
    return (*found, *(one for one in pooled if one is not None), *alone)


_POOLED = {RemarkCode.TOO_FEW_SAMPLES, RemarkCode.BUSY_HOST, RemarkCode.HOST_CONTENDED}


def _shared(code: RemarkCode, repetitions: Sequence[Repetition]) -> Remark | None:
    having = [(one.repetition, remark) for one in repetitions for remark in one.remarks
              if remark.code is code]  # fmt: skip
    if not having:
        return None
    first = having[0][1]
    if len(repetitions) == 1 or code is RemarkCode.CLOSED_LOOP_HIDES_STALLS:
        return first
    where = f"{len(having)} of {len(repetitions)} repetitions, first in {having[0][0]}"
    return Remark(code=code, message=f"{where}: {first.message}")


def busy_remarks(repetitions: Sequence[Repetition]) -> tuple[Remark, ...]:
    """The evidence that others used the machine meanwhile, if they did."""
    found = _busy([one.host for one in repetitions if one.host is not None], len(repetitions))
    return (found,) if found else ()


def _busy(
    hosts: Sequence[HostLoad], num_repetitions: int, without_contended: bool = False
) -> Remark | None:
    busy = [one for one in hosts if is_busy(one) and not (without_contended and is_contended(one))]
    if not busy:
        return None
    worst = max(one.foreign_cpu_share for one in busy)
    steal = max(one.steal_share for one in busy)
    message = (
        f"{len(busy)} of {num_repetitions} repetitions on a busy host: others took up to "
        f"{worst:.0%} of the CPU, the hypervisor {steal:.0%}; measure again on a quiet one, or "
        "leave others a core: OMP_NUM_THREADS below the number of cores"
    )
    return Remark(code=RemarkCode.BUSY_HOST, message=message)


def _contended(hosts: Sequence[HostLoad]) -> Remark | None:
    contended = [one for one in hosts if is_contended(one)]
    if not contended:
        return None
    worst = max(one.foreign_cpu_share for one in contended)
    steal = max(one.steal_share for one in contended)
    message = (
        f"others took up to {worst:.0%} of the CPU, the hypervisor {steal:.0%}, more than a figure "
        "survives; stop what else runs on this machine, or use another one"
    )
    return Remark(code=RemarkCode.HOST_CONTENDED, message=message)


def host_contended(evidence: Evidence) -> Remark | None:
    """A machine that others used beyond what a figure survives."""
    return _contended([evidence.host]) if evidence.host else None


def busy_host(evidence: Evidence) -> Remark | None:
    """A machine that others used enough to move a figure."""
    return _busy([evidence.host], 1, without_contended=True) if evidence.host else None


def tokens_from_chunks(evidence: Evidence) -> Remark | None:
    """Tokens counted by chunks, since neither usage nor a tokenizer told."""
    kept = [one for one in counted(evidence.samples) if is_ok(one)]
    num = sum(one.token_source == "chunks" for one in kept)
    if num == 0:
        return None
    message = (
        f"tokens of {num} of {len(kept)} requests are counted by chunks, one each, as the server "
        "tells no usage: TPOT and tokens/s are a guess; let it send usage "
        "(stream_options.include_usage)"
    )
    return Remark(code=RemarkCode.TOKENS_FROM_CHUNKS, message=message)


def multi_token_chunks(evidence: Evidence) -> Remark | None:
    """Chunks of several tokens: nobody saw the gaps inside."""
    kept = [one for one in counted(evidence.samples) if is_ok(one)]
    num = sum(any(tokens > 1 for tokens in one.chunk_tokens) for one in kept)
    if num == 0:
        return None
    message = (
        f"{num} of {len(kept)} requests had chunks of several tokens: ITL is not claimed for them, "
        "TPOT is; for ITL let the server stream token by token (without multi-step or speculative "
        "decoding)"
    )
    return Remark(code=RemarkCode.MULTI_TOKEN_CHUNKS, message=message)


def failed_requests(evidence: Evidence) -> Remark | None:
    """More lost requests than leave the latencies of the others comparable."""
    kept = counted(evidence.samples)
    lost = Counter(one.error.value or one.status.value for one in kept if not is_ok(one))
    if lost.total() <= MOST_FAILED * len(kept):
        return None
    kinds = ", ".join(f"{num} {kind}" for kind, num in lost.most_common())
    message = (
        f"{lost.total()} of {len(kept)} requests did not end ok ({kinds}): latencies are of the "
        "others alone; see the server's log, or ask less of it"
    )
    return Remark(code=RemarkCode.FAILED_REQUESTS, message=message)


def prompt_length_differs(evidence: Evidence) -> Remark | None:
    """Prompts that the server counts longer or shorter than the plan made them."""
    off = []
    for one in counted(evidence.samples):
        planned = evidence.planned_prompt_tokens.get(one.request_id)
        if is_ok(one) and planned and one.prompt_tokens:
            off.append((one.prompt_tokens - planned) / planned)
    middle = percentile([abs(one) for one in off], 50)
    if middle is None or middle <= MOST_PROMPT_DIFFERENCE:
        return None
    message = (
        f"the server counts prompts {percentile(off, 50):+.0%} from the planned length (median of "
        f"{len(off)}): prefill is not the one that was asked for; give the profile the model that "
        "the server has, and send token ids to /v1/completions, which takes no template"
    )
    return Remark(code=RemarkCode.PROMPT_LENGTH_DIFFERS, message=message)


def too_few_samples(evidence: Evidence) -> Remark | None:
    """Percentiles of the SLO that so many requests cannot decide."""
    kept = counted(evidence.samples)
    few = []
    for limit in evidence.limits:
        values = latencies_s(kept, limit.metric)
        allowed = 1 - limit.percent / 100
        over = sum(value > limit.limit_s for value in values)
        if limit.metric != "itl" and claim(len(values), over, allowed) is Claim.INCONCLUSIVE:
            few.append(_few(limit.key, len(values), num_needed(over, allowed), over))
    return _too_few(few)


def _few(key: str, num: int, needed: int | None, over: int) -> str:
    return f"{key} {num} requests, {over} over, {needed or 'no number'} needed"


def _too_few(few: Sequence[str]) -> Remark | None:
    if not few:
        return None
    message = f"not decided at 95% confidence: {'; '.join(few)}; run longer or ask more requests"
    return Remark(code=RemarkCode.TOO_FEW_SAMPLES, message=message)


CHECKS: tuple[Callable[[Evidence], Remark | None], ...] = (
    client_lag,
    schedule_lag,
    rate_short,
    host_contended,
    prefix_contamination,
    cold_start,
    ttft_disagrees,
    prompt_length_differs,
    failed_requests,
    too_few_samples,
    tokens_from_chunks,
    multi_token_chunks,
    closed_loop,
    busy_host,
)
"""Each check by itself; None is silence."""
