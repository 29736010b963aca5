"""Load: one plan is split between load processes, whose union is exactly the plan."""

from __future__ import annotations

from collections.abc import Mapping

from dstune.load.bodies import Asker, body_of
from dstune.load.plan import LoadPlan, PlannedRequest
from dstune.load.wire import WirePlan, WireRequest


def to_wire(
    plan: LoadPlan,
    asker: Asker,
    *,
    url: str,
    path: str,
    headers: Mapping[str, str],
    num_processes: int,
) -> list[WirePlan]:
    """The share of each load process, ready to send.

    Sessions go round; in a closed loop round its places, which go round the processes, so that
    each process gets as much to do as it has places. A process with nothing to do gets no share:
    there may be fewer shares than processes.
    """
    num_places = plan.concurrency or num_processes
    shares: list[list[WireRequest]] = [[] for _ in range(min(num_processes, num_places))]
    session = -1
    before: PlannedRequest | None = None
    for request in plan.requests:
        if before is None or not request.session_id or request.session_id != before.session_id:
            session += 1
        before = request
        shares[session % num_places % len(shares)].append(_to_send(request, asker))
    return [
        WirePlan(
            process=process,
            url=url,
            path=path,
            headers=dict(headers),
            requests=requests,
            concurrency=_places_of(process, len(shares), plan.concurrency),
            timeout_s=plan.timeout_s,
            duration_s=plan.duration_s,
            grace_s=plan.grace_s,
        )
        for process, requests in enumerate(shares)
        if requests
    ]


def _places_of(process: int, num_processes: int, concurrency: int | None) -> int | None:
    return None if concurrency is None else len(range(process, concurrency, num_processes))


def _to_send(request: PlannedRequest, asker: Asker) -> WireRequest:
    body, reading = body_of(request, asker)
    return WireRequest(
        request_id=request.request_id,
        kind=request.kind,
        body=body,
        offset_ns=request.offset_ns,
        prompt_tokens=len(request.prompt_token_ids),
        session_id=request.session_id,
        turn=request.turn,
        think_ns=request.think_ns,
        reading=reading,
    )
