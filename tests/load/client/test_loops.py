"""Open and closed loops, sessions, stops and stalls, through real load processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from load_child import Child, ask, plan, request, soon

from dstune.load.wire import WireRequest, WireResult, read_result
from dstune.measure.sample import Sample, SampleError, Status

MS = 1_000_000
QUICK = {"tokens": 2, "ttft_ms": 2, "itl_ms": 1}
SLOWISH = {"tokens": 20, "ttft_ms": 50, "itl_ms": 10}
ENDLESS = {"mode": "forever", "tokens": 4}


def at(number: int, offset_ms: float, script: dict[str, object] | None = None) -> WireRequest:
    return request(number, QUICK if script is None else script, offset_ns=round(offset_ms * MS))


def statuses(result: WireResult) -> list[Status]:
    return [one.status for one in result.samples]


def while_running(
    client: Child, result: Path, *acts: tuple[float, Callable[[], object]]
) -> WireResult:
    """Acts after so many seconds each, then the result."""
    timers = [threading.Timer(seconds, act) for seconds, act in acts]
    for timer in timers:
        timer.start()
    client.await_event("ran")
    for timer in timers:
        timer.join()
    return read_result(result)


def test_a_frozen_server_shows_in_latency_from_the_intended_time(
    client: Child, server: str
) -> None:
    """50/s for 6 s, the server frozen for 2 s in the middle."""
    asked = [at(i, i * 20, {"tokens": 2}) for i in range(300)]
    start_ns = soon(400)
    result = client.begin(plan(server, asked), start_ns)
    after_s = (start_ns - time.monotonic_ns()) / 1e9 + 2
    freeze = (after_s, lambda: ask(server, "/freeze", {"ms": 2000, "after_ms": 10}))
    samples = while_running(client, result, freeze).samples
    assert {one.status for one in samples} == {Status.OK}
    assert [one.intended_ns - start_ns for one in samples] == [i * 20 * MS for i in range(300)]
    assert all(one.sent_ns is not None for one in samples)
    # the stall of the server delayed no send
    late_ms = [(one.sent_ns - one.intended_ns) / MS for one in samples if one.sent_ns]
    assert np.percentile(late_ms, 90) < 100
    ttft_ms = [(one.first_token_ns - one.intended_ns) / MS for one in samples if one.first_token_ns]
    assert np.percentile(ttft_ms, 99) > 1900
    assert 90 <= sum(one > 150 for one in ttft_ms) <= 150


def test_the_schedule_is_kept_and_its_lateness_is_small(client: Child, server: str) -> None:
    offsets = np.cumsum(np.random.default_rng(3).exponential(5.0, 300))
    start_ns = soon()
    result = client.run(plan(server, [at(i, o) for i, o in enumerate(offsets)]), start_ns)
    sent = np.array([one.sent_ns for one in result.samples])
    intended = np.array([one.intended_ns for one in result.samples])
    assert np.array_equal(intended, start_ns + np.rint(offsets * MS))
    assert (sent >= intended).all()
    assert np.percentile((sent - intended) / MS, 50) < 1
    assert result.started_ns == start_ns and result.finished_ns > sent.max()


def test_a_stalled_client_catches_up_with_its_schedule(client: Child, server: str) -> None:
    """The process itself stands still: intended times stay, and lateness is on the record."""
    asked = [at(i, i * 10) for i in range(100)]
    start_ns = soon()
    result = client.begin(plan(server, asked), start_ns)
    pid = client.process.pid
    time.sleep(0.5)
    client.process.send_signal(19)
    time.sleep(0.5)
    client.process.send_signal(18)
    assert pid == client.process.pid
    client.await_event("ran")
    done = read_result(result)
    assert statuses(done) == [Status.OK] * 100
    late_ms = [(one.sent_ns - one.intended_ns) / MS for one in done.samples if one.sent_ns]
    assert sum(one > 5 for one in late_ms) >= 40 and max(late_ms) > 400
    assert done.health.heartbeat_lag_max_ns > 400 * MS


def test_two_processes_share_one_schedule(server: str, folder: Path) -> None:
    """The union is the plan, and the gaps are those that were asked for."""
    offsets = np.cumsum(np.random.default_rng(5).exponential(8.0, 200))
    asked = [at(i, o) for i, o in enumerate(offsets)]
    children = [Child(folder, 0), Child(folder, 1)]
    start_ns = soon(400)
    paths = [
        child.begin(plan(server, asked[k::2], process=k), start_ns)
        for k, child in enumerate(children)
    ]
    for child in children:
        child.await_event("ran")
    samples = sorted(
        (one for path in paths for one in read_result(path).samples),
        key=lambda one: one.intended_ns,
    )
    for child in children:
        child.close()
    assert [one.request_id for one in samples] == [one.request_id for one in asked]
    assert {one.process for one in samples} == {0, 1}
    sent = np.array([one.sent_ns for one in samples]) / MS
    gaps, wanted = np.diff(np.sort(sent)), np.diff(offsets)
    assert np.median(np.abs(gaps - wanted)) < 1
    assert np.corrcoef(gaps, wanted)[0, 1] > 0.5


def test_nothing_caps_an_open_loop(client: Child, server: str) -> None:
    asked = [at(i, i * 0.5, {"tokens": 1, "ttft_ms": 1500}) for i in range(600)]
    result = client.run(plan(server, asked), soon())
    assert statuses(result) == [Status.OK] * 600
    last_sent = max(one.sent_ns for one in result.samples if one.sent_ns)
    first_token = min(one.first_token_ns for one in result.samples if one.first_token_ns)
    assert last_sent < first_token  # all 600 at once


def in_flight(samples: list[Sample]) -> int:
    """The most requests at once."""
    edges = [(one.intended_ns, 1) for one in samples] + [(one.done_ns, -1) for one in samples]
    level = most = 0
    for _, step in sorted(edges):
        level += step
        most = max(most, level)
    return most


def test_a_closed_loop_holds_its_concurrency(client: Child, server: str) -> None:
    asked = [request(i, {"tokens": 4, "ttft_ms": 20}, offset_ns=None) for i in range(40)]
    result = client.run(plan(server, asked, concurrency=5))
    assert statuses(result) == [Status.OK] * 40
    assert in_flight(result.samples) == 5
    by_slot = sorted(one.intended_ns for one in result.samples)
    assert all(gap < 1000 * MS for gap in np.diff(by_slot))


def session(name: str, turns: int, think_ms: float, offset_ns: int | None) -> list[WireRequest]:
    return [
        request(
            k,
            QUICK,
            request_id=f"{name}-{k}",
            session_id=name,
            turn=k,
            think_ns=round(think_ms * MS) if k else 0,
            offset_ns=offset_ns if k == 0 else None,
        )
        for k in range(turns)
    ]


@pytest.mark.parametrize("concurrency", [None, 1])
def test_turns_follow_each_other_after_thinking(
    client: Child, server: str, concurrency: int | None
) -> None:
    offset = None if concurrency else 0
    asked = [*session("a", 3, 40, offset), *session("b", 3, 40, offset)]
    result = client.run(plan(server, asked, concurrency=concurrency))
    assert [one.request_id for one in result.samples] == [one.request_id for one in asked]
    assert statuses(result) == [Status.OK] * 6
    for turns in (result.samples[:3], result.samples[3:]):
        for before, after in pairwise(turns):
            assert before.done_ns is not None and after.sent_ns is not None
            assert after.intended_ns == before.done_ns + 40 * MS
            assert after.sent_ns >= after.intended_ns
    ends_a, begins_b = result.samples[2].done_ns, result.samples[3].intended_ns
    assert ends_a is not None
    assert (begins_b >= ends_a) == (concurrency == 1)


def test_a_session_ends_with_a_turn_that_failed(client: Child, server: str) -> None:
    first, *rest = session("a", 3, 5, 0)
    bad = request(0, {"mode": "server_error"}, session_id="a", offset_ns=0)
    other = at(9, 0)
    result = client.run(plan(server, [bad, *rest, other]))
    assert statuses(result) == [Status.FAILED, Status.UNSENT, Status.UNSENT, Status.OK]
    assert first.turn == 0 and result.samples[1].error is SampleError.STOPPED
    assert result.samples[1].sent_ns is None and result.samples[1].done_ns is None


def test_a_stop_lets_what_is_in_flight_end(client: Child, server: str) -> None:
    asked = [at(i, i * 20, SLOWISH) for i in range(200)]
    begun = client.begin(plan(server, asked))
    result = while_running(client, begun, (0.6, lambda: client.send(op="stop")))
    seen = statuses(result)
    assert 5 < seen.count(Status.OK) < 60
    assert seen.count(Status.OK) + seen.count(Status.UNSENT) == 200
    assert seen == sorted(seen, key=lambda one: one is Status.UNSENT)
    assert (result.finished_ns - result.started_ns) / 1e9 < 3.5


def test_grace_ends_and_what_is_left_is_incomplete(client: Child, server: str) -> None:
    asked = [at(0, 0, ENDLESS), at(1, 0), at(2, 9000)]
    begun = client.begin(plan(server, asked, grace_s=0.3))
    result = while_running(client, begun, (0.5, lambda: client.send(op="stop")))
    assert statuses(result) == [Status.INCOMPLETE, Status.OK, Status.UNSENT]
    assert result.samples[0].error is SampleError.STOPPED
    assert result.samples[0].output_tokens > 4 and result.samples[0].done_ns is None


def test_an_abort_ends_everything(client: Child, server: str) -> None:
    asked = [at(0, 0, ENDLESS), at(1, 0, {"ttft_ms": 9000}), at(2, 9000)]
    begun = client.begin(plan(server, asked))
    result = while_running(client, begun, (0.5, lambda: client.send(op="abort")))
    assert statuses(result) == [Status.INCOMPLETE, Status.INCOMPLETE, Status.UNSENT]
    assert (result.finished_ns - result.started_ns) / 1e9 < 5


def test_a_stop_that_comes_before_the_run_began(client: Child, server: str) -> None:
    begun = client.begin(plan(server, [at(0, 0), at(1, 5)]), soon(1000))
    client.send(op="stop")
    client.await_event("ran")
    assert statuses(read_result(begun)) == [Status.UNSENT] * 2


def test_a_duration_ends_a_closed_loop_and_leaves_out_what_was_never_due(
    client: Child, server: str
) -> None:
    asked = [request(i, SLOWISH, offset_ns=None) for i in range(100)]
    result = client.run(plan(server, asked, concurrency=3, duration_s=0.5))
    assert 3 <= len(result.samples) < 30
    assert set(statuses(result)) == {Status.OK}
    last = max(one.intended_ns for one in result.samples)
    assert last <= result.started_ns + 500 * MS


def test_a_duration_ends_an_open_loop_and_keeps_account(client: Child, server: str) -> None:
    asked = [at(i, i * 100, SLOWISH) for i in range(10)]
    result = client.run(plan(server, asked, duration_s=0.45))
    assert statuses(result) == [Status.OK] * 5 + [Status.UNSENT] * 5


def test_progress_tells_what_happens(client: Child, server: str) -> None:
    asked = [at(i, i * 30, SLOWISH) for i in range(30)]
    refused = request(30, {"mode": "queue_full"}, offset_ns=0)
    empty = request(31, {"mode": "bad_request"}, offset_ns=0, kind="empty_prompt")
    client.run(plan(server, [*asked, refused, empty]))
    first, last = client.progress[0], client.progress[-1]
    assert (last["planned"], last["sent"], last["finished"], last["in_flight"]) == (32, 32, 32, 0)
    assert (last["ok"], last["failed"], last["errors"]) == (30, 1, {"queue_full": 1})
    assert (last["anomalies"], last["handled"], last["output_tokens"]) == (1, 1, 600)
    assert first["in_flight"] > 0 and first["sent"] < 32
    ttft = [value for one in client.progress for value in one["ttft_ms"]]
    tpot = [value for one in client.progress for value in one["tpot_ms"]]
    assert len(ttft) == len(tpot) == 30
    assert min(ttft) >= 49 and np.median(tpot) == pytest.approx(10, rel=0.2)
