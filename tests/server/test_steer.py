"""Commands on the engine between its steps, carried out in this process."""

from __future__ import annotations

import io
import json
import queue
import time
from statistics import fmean
from typing import Any

import pytest

from dstune.engine.config import EngineConfig
from dstune.engine.engine import Engine
from dstune.engine.scoring import score_windows
from dstune.engine.tracing.engine import TracedEngine
from dstune.model.loading.open import open_checkpoint
from dstune.server.steer import Child, _take_commands

KNOBS = {"precision": "fp32", "max_model_len": 128, "kv_cache_memory_bytes": 4 << 20}
WINDOWS = [list(range(40, 100)), list(range(60, 140)), list(range(41, 101))]
CONTEXT = 16


class Steered:
    """A child and what it answers."""

    def __init__(self, slow: str | None = None, **opened: Any) -> None:
        self._events = io.BytesIO()
        self.child = Child(self._events, slow)
        self.opened = self.ask("open", model="tiny-deepseek", weights="auto", device="cpu",
                               **opened)  # fmt: skip
        if self.opened["event"] == "opened":
            assert self.ask("configure", knobs=KNOBS)["event"] == "configured"

    def ask(self, op: str, **command: Any) -> dict[str, Any]:
        """The last event that the command brings."""
        self.child.carry_out({"op": op, **command})
        return dict(json.loads(self._events.getvalue().splitlines()[-1]))

    def add(self, name: str, num_tokens: int) -> None:
        params = {"max_tokens": num_tokens, "ignore_eos": True}
        self.child.carry_out(
            {"op": "add", "id": name, "prompt_token_ids": WINDOWS[0][:20], "params": params,
             "arrival_ns": 0}
        )  # fmt: skip

    def serve(self) -> None:
        while self.child.idle_s() is not None:
            self.child.step()


@pytest.fixture(scope="module")
def steered() -> Steered:
    return Steered()


def test_scores_are_the_engines_own(steered: Steered) -> None:
    engine = Engine(open_checkpoint("tiny-deepseek"), EngineConfig.from_knobs(KNOBS))
    expected = [-fmean(one) for one in score_windows(engine, WINDOWS, CONTEXT)]
    scored = steered.ask("score", windows=WINDOWS, context_tokens=CONTEXT)
    assert scored == {"event": "scored", "window_nlls": pytest.approx(expected, abs=1e-6)}
    assert steered.ask("score", windows=WINDOWS, context_tokens=CONTEXT) == scored


def test_scoring_leaves_no_prefixes_behind(steered: Steered) -> None:
    steered.ask("score", windows=WINDOWS, context_tokens=CONTEXT)
    request = {
        "request_id": "a", "offset_ns": 0, "prompt_token_ids": WINDOWS[0], "output_tokens": 1,
        "seed": 0, "session_id": "", "turn": 0, "kind": "",
    }  # fmt: skip
    ran = steered.ask("run", requests=[request], concurrency=1, temperature=0, timeout_s=60)
    assert ran["rows"][0]["cached_tokens"] == 0


@pytest.mark.parametrize(
    ("window", "context", "message"),
    [
        (list(range(128)), 16, "at most 127 "),
        (list(range(16)), 16, "more than its 16 of context"),
        (list(range(16)), 0, "its 0 of context"),
        ([*range(20), 100_000], 16, "outside the vocabulary"),
        ([100_000] * 20, 16, "outside the vocabulary"),
    ],
)
def test_a_window_that_cannot_be_scored(
    steered: Steered, window: list[int], context: int, message: str
) -> None:
    refused = steered.ask("score", windows=[WINDOWS[0], window], context_tokens=context)
    assert refused["kind"] == "UsageError"
    assert message in refused["message"]
    assert "window_nlls" in steered.ask("score", windows=WINDOWS, context_tokens=CONTEXT)


def test_scoring_needs_an_idle_engine(steered: Steered) -> None:
    steered.add("a", 3)
    refused = steered.ask("score", windows=WINDOWS, context_tokens=CONTEXT)
    assert refused["kind"] == "UsageError" and "live requests" in refused["message"]
    steered.serve()


def test_an_untraced_engine_has_no_trace(steered: Steered) -> None:
    refused = steered.ask("trace")
    assert refused["kind"] == "UsageError" and "traces" in refused["message"]
    assert not isinstance(steered.child._engine, TracedEngine)


def test_a_trace_is_of_the_steps_since_the_last_one() -> None:
    steered = Steered(traces=True)
    steered.ask("configure", knobs=KNOBS)
    for num_tokens in (3, 5):
        steered.add("a", num_tokens)
        steered.serve()
        taken = steered.ask("trace")
        assert taken["event"] == "trace" and len(taken["steps"]) == num_tokens
        assert taken["ceilings"]["copy_bytes_per_s"] > 0 and taken["device"]
    assert steered.ask("trace")["steps"] == []


def test_waiting_for_a_command_is_idle_time() -> None:
    steered = Steered(traces=True)
    received: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    params = {"max_tokens": 1}
    for name in "ab":
        begun_ns = time.monotonic_ns()
        steered.child.waited(begun_ns - 1_000_000_000)  # a second ago
        received.put({"op": "add", "id": name, "prompt_token_ids": [5], "params": params,
                      "arrival_ns": begun_ns})  # fmt: skip
        _take_commands(received, steered.child)
        steered.serve()
    first, second = steered.ask("trace")["steps"]
    # more than has passed since the step before cannot have been waited
    assert first[6:] == [0, 0] and second[6] > 0 and second[7] == 0


@pytest.mark.parametrize("traces", [False, True])
def test_a_planted_slowdown_serves(traces: bool) -> None:
    steered = Steered("experts=0.5", traces=traces)
    steered.add("a", 3)
    steered.serve()
    steps = steered.ask("steps")["steps"]
    assert len(steps) == 3


def test_a_bad_slowdown_is_the_answer_to_open() -> None:
    opened = Steered("no_such_kernel=1").opened
    assert opened["kind"] == "UsageError" and "no_such_kernel" in opened["message"]
