"""Stats: trust in the server: was it warm, was its cache clean, does it say what the client saw."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dstune.measure.record import Remark, RemarkCode
from dstune.measure.sample import Sample, Status
from dstune.stats.evidence import Evidence
from dstune.stats.intervals import percentile
from dstune.stats.metrics import Loop, counted, is_ok, service_ttft_s, ttft_s
from dstune.stats.server_histograms import (
    PERCENTS,
    PREFIX_HITS,
    PREFIX_QUERIES,
    TTFT,
    bounds_s,
    bucket_at,
    rank_of,
    rise,
    since,
)

MOST_UNPLANNED_CACHED = 0.02
"""Share of all prompt tokens that may come from the cache by accident: below the smallest effect
that dstune claims, 3%."""
COLD_SHARE = 0.02
COLD_LEAST = 5
"""The first 2% or 5 requests may be cold; more than that is no start but how the server is."""
COLD_SPREADS = 5.0  # robust standard deviations of ln TTFT above its median
COLD_LEAST_RATIO = 2.0  # and at least twice the median: steady latencies have hardly a spread
COLD_LEAST_REST = 20  # requests from which the usual TTFT can be told
COLD_MOVES_P99 = 1.10  # a cold start that moves no figure is nobody's concern
TTFT_WIDENED_S = 0.005  # network, HTTP parsing and the client
COUNT_SHARE = 0.01  # of requests that one side may count more: the readings are moments apart
COUNT_LEAST = 2


def prefix_contamination(evidence: Evidence) -> Remark | None:
    """Prompts served from the prefix cache beyond what the plan shares on purpose.

    One block per request is let pass: templates and begin-of-text tokens are alike everywhere.
    """
    told = [one for one in counted(evidence.samples) if one.cached_tokens is not None]
    if told:
        excess = sum(max(0, (one.cached_tokens or 0) - _allowed(one, evidence)) for one in told)
        total: float = sum(one.prompt_tokens for one in told)
        source = "the answers' cached_tokens"
    else:
        hits = rise(evidence.server, PREFIX_HITS) if evidence.server else None
        queries = rise(evidence.server, PREFIX_QUERIES) if evidence.server else None
        if not hits or not queries:
            return None
        sent = [one for one in evidence.samples if one.sent_ns is not None]
        excess, total = round(hits - sum(_allowed(one, evidence) for one in sent)), queries
        source = "the server's counter of prefix hits"
    if total <= 0 or excess <= MOST_UNPLANNED_CACHED * total:
        return None
    message = (
        f"{excess / total:.0%} of the prompt tokens ({excess:,} of {total:,.0f}, by {source}) came "
        "from the prefix cache though no prompt shares them on purpose, so prefill looks too fast; "
        "restart the server or let it reset its prefix cache, and use another workload.seed"
    )
    return Remark(code=RemarkCode.PREFIX_CONTAMINATION, message=message)


def _allowed(sample: Sample, evidence: Evidence) -> int:
    """Cached tokens that are no surprise; a hostile prompt may be like any other."""
    if sample.kind != "normal":
        return sample.prompt_tokens
    return evidence.planned_shared_tokens.get(sample.request_id, 0) + evidence.block_tokens


def cold_start(evidence: Evidence) -> Remark | None:
    """First requests far slower than all that follow, when they decide the p99.

    In an open loop the first request meets an idle server, so only a cold one is slow to it. A
    closed loop begins with a burst that looks the same after a warm-up, and a batch is nothing
    but a burst: there nothing is said.
    """
    if evidence.loop is Loop.BATCH or (evidence.loop is Loop.CLOSED and evidence.has_warmup):
        return None
    kept = sorted((one for one in counted(evidence.samples) if is_ok(one)),
                  key=lambda one: one.intended_ns)  # fmt: skip
    timed = [one for one in kept if ttft_s(one) is not None]
    values = [ttft_s(one) or 0.0 for one in timed]
    most = max(COLD_LEAST, math.ceil(COLD_SHARE * len(values)))
    if evidence.loop is Loop.CLOSED:
        most = max(most, _first_wave(timed))
    num_cold = _num_cold(values, most)
    if num_cold == 0:
        return None
    with_them, without = percentile(values, 99), percentile(values[num_cold:], 99)
    assert with_them is not None and without is not None
    if with_them <= COLD_MOVES_P99 * without:
        return None
    warmed = "more warm-up than the usual requests" if evidence.has_warmup else "a warm-up"
    message = (
        f"the first {num_cold} of {len(values)} requests were slow as none later: TTFT up to "
        f"{1e3 * max(values[:num_cold]):,.0f} ms, and p99 {1e3 * with_them:,.0f} ms instead of "
        f"{1e3 * without:,.0f} ms without them; the server was cold: give it {warmed}, then measure"
    )
    return Remark(code=RemarkCode.COLD_START, message=message)


def _first_wave(ordered: Sequence[Sample]) -> int:
    """Requests that a closed loop sent before the first of them ended."""
    first_end = min((one.done_ns for one in ordered if one.done_ns is not None), default=0)
    return sum(one.sent_ns is not None and one.sent_ns < first_end for one in ordered)


def _num_cold(values: Sequence[float], most: int) -> int:
    """How many values at the head are far above all the others, with no such run later."""
    rest = np.asarray(values[most:])
    if len(rest) < COLD_LEAST_REST or bool((rest <= 0).any()):
        return 0
    logs = np.log(rest)
    middle = float(np.median(logs))
    spread = 1.4826 * float(np.median(np.abs(logs - middle)))  # MAD of a normal distribution
    limit = math.exp(middle + max(COLD_SPREADS * spread, math.log(COLD_LEAST_RATIO)))
    num = next((at for at, value in enumerate(values[:most]) if value <= limit), most)
    if num == 0:
        return 0
    lowest, run = min(values[:num]), 0
    for value in values[num:]:
        run = run + 1 if value >= lowest else 0
        if run >= num:
            return 0
    return num


def ttft_disagrees(evidence: Evidence) -> Remark | None:
    """The server's own histogram of TTFT against the client's, by whole buckets.

    vLLM counts from the arrival of a request at the server to its first token, so the client's
    TTFT from the actual send must be the same but for the way. Its nearest-rank percentiles are
    compared, not the interpolated ones, since a bucket holds a value that occurred.
    """
    histogram = since(evidence.server, TTFT) if evidence.server else None
    if histogram is None:
        return None
    seen = sorted(value for one in evidence.samples if (value := service_ttft_s(one)) is not None)
    could = sum(one.sent_ns is not None and one.status is not Status.REJECTED
                for one in evidence.samples)  # fmt: skip
    num = round(histogram.count)
    slack = max(COUNT_LEAST, COUNT_SHARE * len(seen))
    if num > max(could, len(seen)) + slack:
        found = "other traffic reached the server meanwhile; keep it away and measure again"
    elif num < len(seen) - slack:
        found = "its metrics are another server's, or one of several; compare them by hand"
    else:
        found = ""
    if found:
        message = f"the server counted {num} first tokens, the client saw {len(seen)}: {found}"
        return Remark(code=RemarkCode.TTFT_DISAGREES, message=message)
    if not seen:
        return None
    off = abs(num - len(seen))  # whichever one side missed may have been the slowest
    differing = []
    for percent in PERCENTS:
        value = seen[rank_of(len(seen), percent) - 1]
        rank = rank_of(num, percent)
        first = bucket_at(histogram, max(1, rank - off)) - 1
        low, high = bounds_s(histogram, first, bucket_at(histogram, rank + off) + 1)
        if not low - TTFT_WIDENED_S <= value <= high + TTFT_WIDENED_S:
            own = bounds_s(histogram, first + 1, bucket_at(histogram, rank + off))
            shown = " to ".join(f"{1e3 * one:,.0f}" for one in own)
            differing.append(f"p{percent:g} {1e3 * value:,.1f} ms here, {shown} ms there")
    if not differing:
        return None
    message = (
        f"TTFT from the send by the client and by the server's own histogram: "
        f"{'; '.join(differing)}; time passes between the two (network, a full accept queue, a "
        "stopped or busy front, a late client), so look there before tuning the engine"
    )
    return Remark(code=RemarkCode.TTFT_DISAGREES, message=message)
