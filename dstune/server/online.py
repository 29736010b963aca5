"""Live requests of one engine: they come and go between its steps, and each step is one event.

Nothing here waits: whoever calls decides when to step and what to do while nothing is due. The
front process turns the events into HTTP answers.
"""

from __future__ import annotations

import traceback
from array import array
from collections.abc import Mapping
from typing import Any, Protocol

from dstune.engine.engine import Engine, StepOutput, TokenOutput
from dstune.engine.request import SamplingParams
from dstune.errors import UsageError

STEP_COLUMNS = (
    "start_ns",
    "duration_ns",
    "num_prefill_tokens",
    "num_decode_tokens",
    "num_running",
    "num_waiting",
    "num_free_blocks",
    "num_preempted",
    "num_cached_tokens",
)
MAX_KEPT_STEPS = 1 << 20  # 72 MiB; an hour of 4 ms steps fits


class Send(Protocol):
    """Writes events, all of them with one call of the system."""

    def __call__(self, *events: Mapping[str, Any]) -> None: ...


class StepLog:
    """The rows of steps since they were last taken, eight bytes a value; the oldest go first."""

    def __init__(self) -> None:
        self._values = array("q")
        self._num_dropped = 0

    def keep(self, row: Mapping[str, int]) -> None:
        """Adds one row."""
        if len(self._values) >= MAX_KEPT_STEPS * len(STEP_COLUMNS):
            half = MAX_KEPT_STEPS // 2
            del self._values[: half * len(STEP_COLUMNS)]
            self._num_dropped += half
        self._values.extend([row[name] for name in STEP_COLUMNS])

    def take(self) -> dict[str, Any]:
        """{"steps": rows, "num_dropped": rows that did not fit}; the log is empty afterwards."""
        width = len(STEP_COLUMNS)
        rows = [
            dict(zip(STEP_COLUMNS, self._values[start : start + width], strict=True))
            for start in range(0, len(self._values), width)
        ]
        taken = {"steps": rows, "num_dropped": self._num_dropped}
        self._values, self._num_dropped = array("q"), 0
        return taken


class OnlineServing:
    """Adds, aborts and steps. Sends these events:

    {"event": "step", ...STEP_COLUMNS, "tokens": [...]}; a token is [id, token id, logprob,
    [[id, logprob], ...], finish reason, first scheduled at (ns), cached tokens], where the last
    two come with a request's first token alone and what does not apply is null.
    {"event": "refused", "id", "message"}: an add that the engine does not take.
    {"event": "idle", "num_free_blocks"}: nothing is left, after steps or aborts.
    """

    def __init__(self, send: Send, keeps_steps: bool) -> None:
        self._send = send
        self._log = StepLog() if keeps_steps else None
        self._is_idle = True

    def add(self, engine: Engine, command: Mapping[str, Any]) -> None:
        """Queues a request: `id`, `prompt_token_ids`, `arrival_ns`, `params` of SamplingParams."""
        self._is_idle = False
        try:
            params = dict(command["params"])
            params["stop_token_ids"] = frozenset(params.get("stop_token_ids", ()))
            engine.add(
                command["id"],
                tuple(command["prompt_token_ids"]),
                SamplingParams(**params),
                arrival_ns=command["arrival_ns"],
            )
        except Exception as refused:
            if not isinstance(refused, UsageError):
                traceback.print_exc()  # the front's fault, which must not end the others' requests
            self._send({"event": "refused", "id": command["id"], "message": str(refused)})

    def step(self, engine: Engine) -> None:
        """Computes one step where something is due, and tells when nothing is left."""
        step = engine.step()
        events: list[Mapping[str, Any]] = []
        if step is not None:
            row = step_row(step)
            events.append({"event": "step", **row, "tokens": [_token(one) for one in step.tokens]})
            if self._log is not None:
                self._log.keep(row)
        if not engine.has_requests and not self._is_idle:
            self._is_idle = True
            events.append({"event": "idle", "num_free_blocks": engine.scheduler.blocks.num_free})
        if events:
            self._send(*events)

    def take_steps(self) -> dict[str, Any]:
        """See `StepLog.take`; without a log there are no rows."""
        return self._log.take() if self._log is not None else {"steps": [], "num_dropped": 0}

    def crashed(self, error: Exception) -> None:
        """Tells that a step failed: no live request will ever get another token."""
        traceback.print_exc()
        self._send({"event": "crashed", "message": f"{type(error).__name__}: {error}"})


def step_row(step: StepOutput) -> dict[str, int]:
    """A step's row of `steps.parquet`, without the caller's own columns."""
    return {
        "start_ns": step.start_ns,
        "duration_ns": step.end_ns - step.start_ns,
        "num_prefill_tokens": step.num_prefill_tokens,
        "num_decode_tokens": step.num_decode_tokens,
        "num_running": step.num_running,
        "num_waiting": step.num_waiting,
        "num_free_blocks": step.num_free_blocks,
        "num_preempted": step.num_preempted,
        "num_cached_tokens": step.num_cached_tokens,
    }


def _token(token: TokenOutput) -> tuple[Any, ...]:
    request = token.request
    is_first = request.num_output_tokens == 1
    return (
        request.request_id,
        token.token_id,
        token.logprob,
        token.top_logprobs or None,
        token.finish_reason,
        request.first_scheduled_ns if is_first else None,
        request.num_cached_tokens if is_first else None,
    )
