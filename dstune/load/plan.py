"""The plan of a load: every request, what it asks and when it is meant to be sent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PlannedRequest:
    """One request before it is sent."""

    request_id: str
    # intended send time after the start of the run; None in a closed loop and for later turns
    offset_ns: int | None
    prompt_token_ids: tuple[int, ...]
    output_tokens: int  # exactly so many: stop tokens are ignored, as every benchmark does
    seed: int
    session_id: str = ""  # empty: a session of its own
    turn: int = 0  # a later one is sent `think_ns` after the turn before it ended
    think_ns: int = 0
    kind: str = "normal"  # or the anomaly's name


@dataclass(frozen=True)
class LoadPlan:
    """Requests in the order of sending; open loop by offsets, or closed loop by `concurrency`.

    The turns of a session stand together.
    """

    requests: tuple[PlannedRequest, ...]
    concurrency: int | None = None  # set: so many sessions in flight, the next when one ends
    temperature: float = 0.0
    timeout_s: float = 600.0  # one request's deadline after its intended send time
    duration_s: float | None = None  # no request begins later; unset: until the plan is done
    grace_s: float = 30.0  # how long after that answers may still come
