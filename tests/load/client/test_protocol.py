"""The socket between dstune and a load process."""

from __future__ import annotations

import time
from pathlib import Path

from load_child import Child, plan, request

from dstune.measure.sample import Status

QUICK = {"tokens": 2, "ttft_ms": 2, "itl_ms": 1}


def test_a_plan_that_cannot_be_read_is_an_error_and_the_next_run_works(
    client: Child, server: str
) -> None:
    client.send(op="run", plan=str(client.folder / "nowhere"), result="x", start_ns=None)
    while (event := client.next_event())["event"] == "progress":
        pass
    assert event["event"] == "error" and "nowhere" in event["message"]
    assert client.run(plan(server, [request(0, QUICK)])).samples[0].status is Status.OK


def test_an_order_that_does_not_exist_is_an_error(client: Child) -> None:
    client.send(op="dance")
    assert client.next_event() == {"event": "error", "message": "unknown command 'dance'"}


def test_an_order_that_is_none_is_an_error_and_the_next_is_obeyed(client: Child) -> None:
    client.send(plan="no op")
    event = client.next_event()
    assert event["event"] == "error" and "KeyError" in event["message"]
    client.send(op="dance")
    assert client.next_event()["event"] == "error"


def test_a_stop_without_a_run_changes_nothing(client: Child, server: str) -> None:
    client.send(op="stop")
    client.send(op="abort")
    assert client.run(plan(server, [request(0, QUICK)])).samples[0].status is Status.OK


def test_quit_ends_the_process_within_a_run(folder: Path, server: str) -> None:
    child = Child(folder)
    child.begin(plan(server, [request(0, {"mode": "forever"})]))
    time.sleep(0.3)
    child.send(op="quit")
    assert child.process.wait(10) == 0


def test_a_parent_that_is_gone_ends_the_process_within_a_run(folder: Path, server: str) -> None:
    child = Child(folder)
    child.begin(plan(server, [request(0, {"mode": "forever"})]))
    time.sleep(0.3)
    child.close()


def test_many_runs_leave_no_memory_behind(client: Child, server: str) -> None:
    def resident_kb() -> int:
        status = Path(f"/proc/{client.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    asked = [request(i, {"tokens": 64, "ttft_ms": 1, "itl_ms": 0.1}) for i in range(200)]
    client.run(plan(server, asked, concurrency=20))
    before = resident_kb()
    for _ in range(8):
        client.run(plan(server, asked, concurrency=20))
    assert resident_kb() - before < 8_000


def test_health_says_how_the_process_kept_up(client: Child, server: str) -> None:
    health = client.run(plan(server, [request(0, {"tokens": 20}, offset_ns=0)], process=3)).health
    assert health.process == 3 and health.has_kernel_stamps
    assert 0 < health.cpu_s < health.wall_s
    assert 0 <= health.heartbeat_lag_p50_ns <= health.heartbeat_lag_p99_ns
    assert health.heartbeat_lag_p99_ns <= health.heartbeat_lag_max_ns
