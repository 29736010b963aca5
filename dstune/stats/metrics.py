"""Stats: the only formulas of the metrics, from one raw sample or one repetition of them.

All times are seconds. Latencies are those of requests that ended ok; requests that the target
lost (rejected, failed, timed out) stay in the denominator of goodput and success rate. Requests
that the client itself gave up on (cancelled, incomplete, unsent) are in neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from dstune.measure.sample import Sample, Status
from dstune.stats.intervals import percentile

NS_PER_S = 1e9
ANSWERED = (Status.OK, Status.REJECTED, Status.FAILED, Status.TIMEOUT)
STEADY_SHARE = 0.5


class Loop(StrEnum):
    """How requests were sent, which decides what the window is."""

    BATCH = "batch"  # all at once
    OPEN = "open"  # by a schedule
    CLOSED = "closed"  # so many in flight


@dataclass(frozen=True)
class Limit:
    """A latency promise: the `percent`-th percentile of `metric` is at most `limit_s`."""

    key: str
    metric: str
    percent: float
    limit_s: float


def is_ok(sample: Sample) -> bool:
    """Whether the request ended with its whole answer."""
    return sample.status is Status.OK


def ttft_s(sample: Sample) -> float | None:
    """First output token received - intended send time."""
    return _between(sample.intended_ns, sample.first_token_ns)


def service_ttft_s(sample: Sample) -> float | None:
    """First output token received - actual send time."""
    return _between(sample.sent_ns, sample.first_token_ns)


def e2e_s(sample: Sample) -> float | None:
    """Last token - intended send time."""
    return _between(sample.intended_ns, sample.last_token_ns)


def tpot_s(sample: Sample) -> float | None:
    """(last token - first token) / tokens after the first chunk; None when none follow it.

    That is n - 1 tokens when they come singly. A first chunk of several tokens came in no time,
    so dividing by n - 1 would flatter it.
    """
    span = _between(sample.first_token_ns, sample.last_token_ns)
    in_first = sample.chunk_tokens[0] if sample.chunk_tokens else 1
    following = sample.output_tokens - in_first
    return span / following if span is not None and following > 0 else None


def inter_chunk_latencies_s(sample: Sample) -> list[float]:
    """Gaps between chunks that carried tokens."""
    offsets = sample.chunk_offsets_ns
    return [(b - a) / NS_PER_S for a, b in pairwise(offsets)]


def itls_s(sample: Sample) -> list[float]:
    """Gaps between tokens; empty when a chunk carried several, for then nobody saw them."""
    if any(tokens != 1 for tokens in sample.chunk_tokens):
        return []
    return inter_chunk_latencies_s(sample)


def _between(start_ns: int | None, end_ns: int | None) -> float | None:
    return (end_ns - start_ns) / NS_PER_S if start_ns is not None and end_ns is not None else None


def _one(metric: Callable[[Sample], float | None]) -> Callable[[Sample], list[float]]:
    def values(sample: Sample) -> list[float]:
        value = metric(sample)
        return [] if value is None else [value]

    return values


LATENCIES: Mapping[str, Callable[[Sample], list[float]]] = {
    "ttft": _one(ttft_s),
    "service_ttft": _one(service_ttft_s),
    "tpot": _one(tpot_s),
    "itl": itls_s,
    "e2e": _one(e2e_s),
}
"""Every latency by name: its values of one request, one for most, one per gap for ITL."""


def latencies_s(samples: Sequence[Sample], metric: str) -> list[float]:
    """A latency's raw values over all requests that ended ok, each request equally weighted."""
    values = LATENCIES[metric]
    return [one for sample in samples if is_ok(sample) for one in values(sample)]


def counted(samples: Sequence[Sample]) -> list[Sample]:
    """Normal requests that the target answered in some way: the denominator of shares."""
    return [one for one in samples if one.kind == "normal" and one.status in ANSWERED]


def offered(samples: Sequence[Sample]) -> list[Sample]:
    """Requests that were sent, hostile ones included: the load, whose times make every rate's."""
    return [one for one in samples if one.status is not Status.UNSENT]


def is_good(sample: Sample, limits: Sequence[Limit]) -> bool:
    """Whether a request met every limit by itself.

    Of several percentiles of one metric the highest counts, since a median promises nothing
    about each request. A request without a value (no token after the first) meets the limit.
    Of the many gaps of one request, its own percentile is held against the limit.
    """
    if not is_ok(sample):
        return False
    highest = {limit.metric: limit for limit in sorted(limits, key=lambda one: one.percent)}
    for limit in highest.values():
        value = percentile(LATENCIES[limit.metric](sample), limit.percent)
        if value is not None and value > limit.limit_s:
            return False
    return True


@dataclass(frozen=True)
class Window:
    """The stretch of a repetition in which output counts; `kind` is steady or whole."""

    start_ns: int
    end_ns: int
    kind: str

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end_ns - self.start_ns) / NS_PER_S


def whole(samples: Sequence[Sample]) -> Window | None:
    """From the first intended send to the last answer; None when nothing was answered."""
    ends = [one.done_ns for one in samples if one.done_ns is not None]
    if not ends:
        return None
    return Window(min(one.intended_ns for one in samples), max(ends), "whole")


def window(samples: Sequence[Sample], loop: Loop) -> Window | None:
    """Where output throughput is counted: between ramp and drain.

    The ramp ends with the first answer, the drain begins with the last send. A batch has neither:
    its tail is part of its price, so all of it counts. So does all of a load that was steady for
    less than half of its time, where the edges would decide.
    """
    everything = whole(samples)
    if everything is None or loop is Loop.BATCH:
        return everything
    start_ns = min(one.done_ns for one in samples if one.done_ns is not None)
    sends = [one.intended_ns if loop is Loop.OPEN else one.sent_ns for one in samples]
    end_ns = max(one for one in sends if one is not None)
    steady = Window(start_ns, end_ns, "steady")
    is_long = steady.seconds >= STEADY_SHARE * everything.seconds and steady.seconds > 0
    return steady if is_long else everything


def output_tokens_per_s(samples: Sequence[Sample], loop: Loop) -> float | None:
    """Output tokens of normal requests that came inside the window / window."""
    inside = window(samples, loop)
    if inside is None or inside.seconds <= 0:
        return None
    tokens = 0
    for sample in counted(samples):
        if is_ok(sample) and sample.sent_ns is not None:
            for offset_ns, count in zip(sample.chunk_offsets_ns, sample.chunk_tokens, strict=True):
                if inside.start_ns < sample.sent_ns + offset_ns <= inside.end_ns:
                    tokens += count
    return tokens / inside.seconds


def load_seconds(samples: Sequence[Sample], loop: Loop) -> float | None:
    """How long requests were offered, the time that requests per second refer to.

    In an open loop that is the schedule's span and one mean gap more, for n requests have n - 1
    gaps; so goodput is the share of good requests times the offered rate. Otherwise the whole.
    """
    if loop is Loop.OPEN and len(samples) > 1:
        intended = [one.intended_ns for one in samples]
        span_s = (max(intended) - min(intended)) / NS_PER_S
        if span_s > 0:
            return span_s * len(samples) / (len(samples) - 1)
    everything = whole(samples)
    return everything.seconds if everything is not None and everything.seconds > 0 else None


def requests_per_s(samples: Sequence[Sample]) -> float | None:
    """Normal requests that ended ok / time from the first intended send to the last answer.

    Unlike goodput's, this time grows when the target falls behind: it is what was delivered.
    """
    everything = whole(samples)
    if everything is None or everything.seconds <= 0:
        return None
    return sum(map(is_ok, counted(samples))) / everything.seconds


def goodput_per_s(samples: Sequence[Sample], loop: Loop, limits: Sequence[Limit]) -> float | None:
    """Normal requests that met every SLO / time of load; lost ones are simply not good."""
    seconds = load_seconds(samples, loop)
    good = sum(is_good(one, limits) for one in counted(samples))
    return good / seconds if seconds else None


def success_rate(samples: Sequence[Sample]) -> float | None:
    """Requests that ended ok / requests that the target answered in some way."""
    return sum(map(is_ok, samples)) / len(samples) if samples else None
