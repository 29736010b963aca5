"""The in-process driver against a scripted engine on a clock that only the script moves."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import pytest

from dstune.engine.blocks import BlockManager
from dstune.engine.config import EngineConfig
from dstune.engine.engine import Engine
from dstune.engine.sampler import Choice
from dstune.engine.scheduler import Scheduler, StepPlan
from dstune.server.offline import OfflineRequest, run_offline

MS = 1_000_000
STEP_NS = 10 * MS


@dataclass
class Clock:
    now_ns: int = 1_000 * MS
    waits: list[int] = field(default_factory=list)

    def __call__(self) -> int:
        return self.now_ns

    def wait_until(self, at_ns: int) -> None:
        self.waits.append(at_ns)
        self.now_ns = max(self.now_ns, at_ns)


class ScriptedRunner:
    """Every step takes STEP_NS; every token is 7."""

    def __init__(self, clock: Clock, size: Any) -> None:
        self.clock = clock
        self.size = size

    def run(self, plan: StepPlan) -> list[Choice]:
        self.clock.now_ns += STEP_NS
        return [Choice(7) for one in plan.scheduled if one.yields_token]


@dataclass(frozen=True)
class Shape:
    vocab_size: int = 1000


@dataclass(frozen=True)
class Checkpoint:
    shape: Shape = Shape()


@dataclass(frozen=True)
class Size:
    max_model_len: int = 64
    num_blocks: int = 32


def scripted(clock: Clock, **knobs: object) -> Engine:
    engine = object.__new__(Engine)
    engine.checkpoint = Checkpoint()  # type: ignore[assignment]
    engine.now_ns = clock
    engine.config = EngineConfig.from_knobs(knobs)
    engine._slowdown = None
    engine._requests = {}
    engine._runner = ScriptedRunner(clock, Size())  # type: ignore[assignment]
    engine._kernels = type("Kernels", (), {"backend": "scripted"})()
    engine._scheduler = Scheduler(engine.config, BlockManager(32, 16, True), 64)
    return engine


def planned(name: str, offset_ms: int | None, prompt: int = 4, output: int = 3) -> OfflineRequest:
    offset = None if offset_ms is None else offset_ms * MS
    return OfflineRequest(name, offset, list(range(prompt)), output, 0, "", 0, "normal")


def run(clock: Clock, engine: Engine, requests: list[OfflineRequest], **options: Any) -> Any:
    options = {"concurrency": None, "temperature": 0.0, "timeout_s": 60.0, **options}
    return run_offline(engine, requests, wait_until=clock.wait_until, **options)


def test_open_loop_stamps_from_the_intended_time() -> None:
    clock = Clock()
    result = run(clock, scripted(clock), [planned("a", 0), planned("b", 5), planned("c", 100)])
    start = result.started_ns
    a, b, c = result.rows
    assert [row["status"] for row in result.rows] == ["ok"] * 3
    assert (a["intended_ns"] - start, a["sent_ns"] - start) == (0, 0)
    assert [a["chunk_offsets_ns"][i] for i in range(3)] == [10 * MS, 20 * MS, 30 * MS]
    assert b["intended_ns"] - start == 5 * MS, "it fell due while the first step ran"
    assert b["sent_ns"] - start == 10 * MS
    assert b["first_token_ns"] - start == 20 * MS
    assert c["intended_ns"] - start == 100 * MS == c["sent_ns"] - start
    assert clock.waits == [start + 100 * MS], "idle until the next arrival, and no polling"
    assert result.finished_ns - start == 130 * MS


def test_steps_tell_what_ran() -> None:
    clock = Clock()
    result = run(clock, scripted(clock), [planned("a", 0), planned("b", 5)])
    kinds = [(step["num_prefill_tokens"], step["num_decode_tokens"]) for step in result.steps]
    assert kinds == [(4, 0), (4, 1), (0, 2), (0, 1)]
    assert all(step["duration_ns"] == STEP_NS for step in result.steps)
    assert result.steps[-1]["num_free_blocks"] == 32


def test_closed_loop_keeps_so_many_in_flight() -> None:
    clock = Clock()
    requests = [planned(str(index), None) for index in range(5)]
    result = run(clock, scripted(clock), requests, concurrency=2)
    sent = [(row["sent_ns"] - result.started_ns) // MS for row in result.rows]
    assert sent == [0, 0, 30, 30, 60]
    assert all(row["intended_ns"] == row["sent_ns"] for row in result.rows)


def session(name: str, offset_ms: int | None, turns: int, think_ms: int) -> list[OfflineRequest]:
    return [
        OfflineRequest(f"{name}{turn}", None if turn or offset_ms is None else offset_ms * MS,
                       list(range(4 + turn)), 3, 0, name, turn, "normal", turn and think_ms * MS)
        for turn in range(turns)
    ]  # fmt: skip


def test_a_later_turn_comes_its_think_time_after_the_answer() -> None:
    clock = Clock()
    result = run(clock, scripted(clock), [*session("a", 0, 3, 50), *session("b", 200, 2, 0)])
    times = [((row["intended_ns"] - result.started_ns) // MS, row["turn"]) for row in result.rows]
    # an answer takes 30 ms; a0 0-30, a1 80-110, a2 160-190, b0 200-230, b1 at once
    assert times == [(0, 0), (80, 1), (160, 2), (200, 0), (230, 1)]
    assert all(row["status"] == "ok" for row in result.rows)
    assert all(row["sent_ns"] == row["intended_ns"] for row in result.rows)


def test_a_closed_loop_counts_sessions_and_their_think_time() -> None:
    clock = Clock()
    planned_turns = [*session("a", None, 2, 100), *session("b", None, 1, 0)]
    result = run(clock, scripted(clock), planned_turns, concurrency=1)
    sent = [(row["sent_ns"] - result.started_ns) // MS for row in result.rows]
    assert sent == [0, 130, 160], "b begins when all of a has ended"


def test_a_turn_follows_one_that_was_refused() -> None:
    clock = Clock()
    turns = session("a", 0, 2, 20)
    turns[0] = dataclasses.replace(turns[0], prompt_token_ids=list(range(100)))
    result = run(clock, scripted(clock), turns)
    assert [row["status"] for row in result.rows] == ["rejected", "ok"]
    assert result.rows[1]["intended_ns"] - result.started_ns == 20 * MS


def test_held_arrivals_wait_for_the_timeout_from_their_intended_time() -> None:
    clock = Clock()
    engine = scripted(clock, batch_timeout_ms=50.0)
    result = run(clock, engine, [planned("a", 0), planned("b", 20)])
    first = [(row["first_token_ns"] - result.started_ns) // MS for row in result.rows]
    assert first == [60, 60], "both in the step that starts when a has waited 50 ms"
    assert result.rows[0]["queue_ns"] == 50 * MS


def test_a_request_past_its_deadline_is_a_timeout_and_frees_its_blocks() -> None:
    clock = Clock()
    engine = scripted(clock)
    result = run(clock, engine, [planned("a", 0, output=60)], timeout_s=0.2)
    (row,) = result.rows
    assert (row["status"], row["error"]) == ("timeout", "deadline")
    assert row["output_tokens"] == 21 and len(row["chunk_offsets_ns"]) == 21
    assert engine.scheduler.blocks.num_free == 32


def test_a_prompt_beyond_max_model_len_is_rejected_and_the_rest_goes_on() -> None:
    clock = Clock()
    result = run(clock, scripted(clock), [planned("long", 0, prompt=64), planned("a", 0)])
    long, a = result.rows
    assert (long["status"], long["error"]) == ("rejected", "prompt_too_long")
    assert long["first_token_ns"] is None and a["status"] == "ok"


def test_a_failure_leaves_the_engine_idle() -> None:
    clock = Clock()
    engine = scripted(clock)

    def fail(plan: StepPlan) -> list[Choice]:
        raise RuntimeError("planted")

    engine._runner.run = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="planted"):
        run(clock, engine, [planned("a", 0)])
    assert not engine.has_requests and engine.scheduler.blocks.num_free == 32
