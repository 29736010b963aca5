"""The raw sample: one row per request and one per engine step, nanoseconds, nothing derived.

All `_ns` columns are readings of one monotonic clock (`time.monotonic_ns`), which processes of
one machine share; `run.json` holds its wall-clock zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Status(StrEnum):
    """How a request ended."""

    OK = "ok"
    REJECTED = "rejected"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    INCOMPLETE = "incomplete"  # in flight when the run was stopped
    UNSENT = "unsent"


class SampleError(StrEnum):
    """Why a request did not end ok.

    A status code that refuses makes the status `rejected`, a server's fault `failed`.
    """

    NONE = ""
    PROMPT_TOO_LONG = "prompt_too_long"
    BAD_REQUEST = "bad_request"  # any other 4xx
    UNAUTHORIZED = "unauthorized"  # 401, 403
    RATE_LIMITED = "rate_limited"  # 429
    QUEUE_FULL = "queue_full"  # 503
    SERVER_ERROR = "server_error"  # any other 5xx
    CONNECT = "connect"  # no connection could be made
    RESET = "reset"  # the connection ended before the answer did
    ERROR_EVENT = "error_event"  # an error object inside a stream that began with 200
    MALFORMED = "malformed"  # bytes that are no HTTP, no event stream, or no JSON
    NO_TOKENS = "no_tokens"  # a complete answer without a token
    TRUNCATED = "truncated"  # the stream ended in order, with neither [DONE] nor finish_reason
    DEADLINE = "deadline"
    DISCONNECTED = "disconnected"  # the client hung up on purpose
    STOPPED = "stopped"
    TARGET_DIED = "target_died"
    INTERNAL = "internal"


@dataclass(frozen=True)
class Sample:
    """One request as it happened: the columns of `requests.parquet`.

    `chunk_offsets_ns` (relative to `sent_ns`) and `chunk_tokens` hold one entry per chunk that
    carried tokens. Times that never came are None.
    """

    request_id: str
    trial_id: str
    repetition: int
    process: int
    session_id: str
    turn: int
    kind: str
    status: Status
    error: SampleError
    http_status: int | None
    intended_ns: int
    sent_ns: int | None
    first_token_ns: int | None
    last_token_ns: int | None
    done_ns: int | None
    chunk_offsets_ns: list[int] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    token_source: str = "usage"  # usage | tokenizer | chunks
    cached_tokens: int | None = None
    queue_ns: int | None = None
    precision: str = ""
    backend: str = ""


@dataclass(frozen=True)
class StepSample:
    """One step of the embedded engine: the columns of `steps.parquet`."""

    trial_id: str
    repetition: int
    start_ns: int
    duration_ns: int
    num_prefill_tokens: int
    num_decode_tokens: int
    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_preempted: int
    num_cached_tokens: int
