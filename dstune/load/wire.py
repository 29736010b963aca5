"""Load: what crosses between dstune and its Locust processes, as msgpack files.

The parent writes a `WirePlan` with every body ready to send, so that sending costs the client
nothing but the send; the client writes a `WireResult` with one sample per request it was given.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import msgspec

from dstune.measure.client_health import ClientHealth
from dstune.measure.files import write_atomically
from dstune.measure.sample import Sample


class Reading(StrEnum):
    """How the client takes the answer."""

    PROMPT = "prompt"  # as it comes
    SLOW = "slow"  # a little at a time, with pauses, through a small receive buffer
    HANG_UP = "hang_up"  # closes the connection after the first tokens


class WireRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request, ready to send."""

    request_id: str
    kind: str
    body: bytes  # of a POST to the plan's path; need not be JSON
    offset_ns: int | None  # intended send after the start; None: when the loop has room
    prompt_tokens: int  # as planned, for the sample when the server does not tell
    session_id: str = ""
    turn: int = 0  # a turn above 0 is sent `think_ns` after the turn before it ended
    think_ns: int = 0
    reading: Reading = Reading.PROMPT


class WirePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The share of one load process. Sessions are never split between processes."""

    process: int
    url: str  # scheme, host and port
    path: str  # such as /v1/completions
    headers: dict[str, str]
    requests: list[WireRequest]  # in the order of sending
    concurrency: int | None  # set: so many sessions in flight, the next begins when one ends
    timeout_s: float  # a request's deadline after its intended send time
    duration_s: float | None = None  # no request begins later than this after the start
    grace_s: float = 30.0  # how long after `duration_s` (or a stop) answers may still come


class WireResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a share: a sample for every request, in the plan's order.

    `trial_id`, `repetition`, `precision` and `backend` are the parent's to set. In a closed loop
    that ended by its duration, requests that were never due are left out.
    """

    started_ns: int
    finished_ns: int
    samples: list[Sample]
    health: ClientHealth


def write_plan(path: Path, plan: WirePlan) -> None:
    """Writes a plan."""
    write_atomically(path, msgspec.msgpack.encode(plan))


def read_plan(path: Path) -> WirePlan:
    """Reads what `write_plan` wrote."""
    return msgspec.msgpack.decode(path.read_bytes(), type=WirePlan)


def write_result(path: Path, result: WireResult) -> None:
    """Writes a result."""
    write_atomically(path, msgspec.msgpack.encode(result))


def read_result(path: Path) -> WireResult:
    """Reads what `write_result` wrote."""
    return msgspec.msgpack.decode(path.read_bytes(), type=WireResult)
