"""Stats: trust in the client: did it keep up, and did it send what the plan asks, when it asks.

Only where load processes sent the load; see `Evidence.clients`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dstune.measure.client_health import ClientHealth
from dstune.measure.record import Remark, RemarkCode
from dstune.measure.sample import Sample, SampleError, Status
from dstune.stats.evidence import Evidence
from dstune.stats.intervals import percentile
from dstune.stats.metrics import (
    NS_PER_S,
    Loop,
    counted,
    inter_chunk_latencies_s,
    is_ok,
    latencies_s,
)

MOST_LAG_OF_ITL = 0.20
"""Share of the median gap between tokens by which a stamp may be late, before ITL is the
client's own."""
KERNEL_STAMPS_SURVIVE_S = 0.010
"""Receive times that the kernel took stay right until the loop is later than this (measured)."""
MOST_CPU_SHARE = 0.90
"""Of one core; beyond it the loop queues even when its mean lag still looks well."""
MOST_SCHEDULE_LAG_S = 0.005
"""Twice what a dispatcher with absolute deadlines needs on a busy host (p99 1.4 ms measured), and
the period of the heartbeat, below which the loop's own lag is not seen."""
MOST_LAG_OF_TTFT = 0.10
"""TTFT counts from the intended time, so a late send stands in it as if it were the server's: a
tenth of the median is as much as the interval of a p50 of some hundred requests."""
TIMER_S = 0.001  # how late a timer fires in a loop that is not late
LEAST_DELIVERED = 0.98
"""Of the drawn schedule; below, the load was lighter than the one that was asked."""


def client_lag(evidence: Evidence) -> Remark | None:
    """A load process whose loop or core was too busy for its stamps."""
    gap_s, what = _token_gap(evidence.samples)
    found = [one for client in evidence.clients for one in _lags(client, gap_s, what)]
    if not found:
        return None
    message = f"{'; '.join(found)}; give the load more --processes, or cores that nobody else uses"
    return Remark(code=RemarkCode.CLIENT_LAG, message=message)


def _token_gap(samples: Sequence[Sample]) -> tuple[float | None, str]:
    """The median gap whose stamps the lag would blur, and what it is."""
    kept = [one for one in counted(samples) if is_ok(one)]
    sources: list[tuple[str, Callable[[], list[float]]]] = [
        ("ITL", lambda: latencies_s(kept, "itl")),
        ("gap between chunks", lambda: [g for one in kept for g in inter_chunk_latencies_s(one)]),
        ("TTFT from the send", lambda: latencies_s(kept, "service_ttft")),
    ]  # fmt: skip
    for name, values in sources:
        median = percentile(values(), 50)
        if median is not None:
            return median, name
    return None, ""


def _lags(client: ClientHealth, gap_s: float | None, what: str) -> list[str]:
    found = []
    lag_s = client.heartbeat_lag_p99_ns / NS_PER_S
    if gap_s is not None:
        limit_s, why = MOST_LAG_OF_ITL * gap_s, f"{MOST_LAG_OF_ITL:.0%} of the median {what}"
        if client.has_kernel_stamps and limit_s < KERNEL_STAMPS_SURVIVE_S:
            limit_s, why = KERNEL_STAMPS_SURVIVE_S, "as much as kernel receive stamps survive"
        if lag_s > limit_s:
            found.append(
                f"load process {client.process} was {1e3 * lag_s:.1f} ms late at the 99th "
                f"percentile of its heartbeats, more than {1e3 * limit_s:.1f} ms, {why}"
            )
    if client.cpu_share > MOST_CPU_SHARE:
        found.append(f"load process {client.process} used {client.cpu_share:.0%} of a core")
    return found


def schedule_lag(evidence: Evidence) -> Remark | None:
    """Requests sent later than the schedule has them, through the client's own fault."""
    if evidence.loop is not Loop.OPEN or not evidence.clients:
        return None
    caps_ns = _caps_ns(evidence.clients)
    lags_s = [_own_lag_ns(one, caps_ns) / NS_PER_S for one in _scheduled(evidence.samples)
              if one.sent_ns is not None]  # fmt: skip
    lag_s = percentile(lags_s, 99)
    if lag_s is None:
        return None
    median_s = percentile(latencies_s(counted(evidence.samples), "ttft"), 50) or 0.0
    limit_s = max(MOST_SCHEDULE_LAG_S, MOST_LAG_OF_TTFT * median_s)
    if lag_s <= limit_s:
        return None
    message = (
        f"requests were sent up to {1e3 * lag_s:.1f} ms after their intended time (p99 of "
        f"{len(lags_s)}), more than {1e3 * limit_s:.1f} ms, and the client's own loop was as late: "
        "this stands in every TTFT; give the load more --processes, or ask a lower rate"
    )
    return Remark(code=RemarkCode.SCHEDULE_LAG, message=message)


def rate_short(evidence: Evidence) -> Remark | None:
    """Fewer sends per second than the schedule has, which was drawn beforehand.

    The asked rate is no measure: what was drawn may differ from it by chance, what was sent may
    not differ from what was drawn.
    """
    scheduled = _scheduled(evidence.samples)
    if evidence.loop is not Loop.OPEN or not evidence.clients or len(scheduled) < 2:
        return None
    due = scheduled
    if any(one.error is SampleError.STOPPED for one in scheduled):
        # what was due after the last send was cut by the stop; what was due before is missing
        last_ns = max((one.sent_ns for one in scheduled if one.sent_ns is not None), default=0)
        due = [one for one in scheduled if one.intended_ns <= last_ns]
    if len(due) < 2 or due[-1].intended_ns == due[0].intended_ns:
        return None
    gap_ns = (due[-1].intended_ns - due[0].intended_ns) / (len(due) - 1)
    end_ns = due[-1].intended_ns + gap_ns
    caps_ns = _caps_ns(evidence.clients)
    num_sent = sum(_was_delivered(one, caps_ns, end_ns) for one in due)
    if num_sent >= LEAST_DELIVERED * len(due):
        return None
    drawn_per_s = NS_PER_S / gap_ns
    is_whole = len(scheduled) == len(evidence.samples)  # else later turns are part of the rate
    rate = evidence.asked_rate_per_s if is_whole else None
    asked = f" ({rate:g}/s asked)" if rate else ""
    message = (
        f"{num_sent} of {len(due)} requests of the schedule were sent by its end: "
        f"{drawn_per_s * num_sent / len(due):.4g} instead of {drawn_per_s:.4g} per second{asked}; "
        "give the load more --processes, or ask a lower rate"
    )
    return Remark(code=RemarkCode.RATE_SHORT, message=message)


def _scheduled(samples: Sequence[Sample]) -> list[Sample]:
    """What the schedule itself sends: later turns of a session wait for the turn before."""
    return sorted((one for one in samples if one.turn == 0), key=lambda one: one.intended_ns)


def _caps_ns(clients: Sequence[ClientHealth]) -> dict[int, float]:
    """How late each load process can have been by itself: its longest heartbeat, and a timer.

    A send that is later than this waited for a connection, which is the server's doing: it
    counts in TTFT, but not against the client.
    """
    return {one.process: one.heartbeat_lag_max_ns + TIMER_S * NS_PER_S for one in clients}


def _own_lag_ns(sample: Sample, caps_ns: dict[int, float]) -> float:
    late = (sample.sent_ns or sample.intended_ns) - sample.intended_ns
    return min(max(late, 0), caps_ns.get(sample.process, float("inf")))


def _was_delivered(sample: Sample, caps_ns: dict[int, float], end_ns: float) -> bool:
    if sample.sent_ns is not None:
        return sample.intended_ns + _own_lag_ns(sample, caps_ns) <= end_ns
    # tried, and no connection came about: in the time there was, or at all
    return sample.status is Status.INCOMPLETE or sample.error in (
        SampleError.CONNECT,
        SampleError.DEADLINE,
    )


def closed_loop(evidence: Evidence) -> Remark | None:
    """What no closed loop can see, said on each."""
    if evidence.loop is not Loop.CLOSED:
        return None
    message = (
        "a closed loop sends less while the server stalls, so it cannot see what a stall does to "
        "requests that would have come meanwhile; for latency that users meet, ask arrivals by rate"
    )
    return Remark(code=RemarkCode.CLOSED_LOOP_HIDES_STALLS, message=message)
