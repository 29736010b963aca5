"""The parent's side of the load processes: real ones, against the scripted server, and kills."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from dstune.errors import TargetError
from dstune.load import locust_processes
from dstune.load.client.command import locustfile_path
from dstune.load.locust_processes import LoadInterrupted, LocustProcesses
from dstune.load.wire import WirePlan, WireRequest
from dstune.measure.progress import LoadProgress
from dstune.measure.sample import SampleError, Status

TESTS = Path(__file__).parents[1]
PATIENCE_S = 60.0
NS_PER_S = 1_000_000_000
PROMPT, ENDLESS, LATE = "prompt", "endless", "late"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Where a scripted server listens."""
    process = subprocess.Popen(
        [sys.executable, str(TESTS / "scripted_server.py"), "--with-parent"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    yield f"http://127.0.0.1:{int(process.stdout.readline().split()[1])}"
    process.stdin.close()
    process.wait(PATIENCE_S)
    process.stdout.close()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocustProcesses]:
    """Two load processes for tests that leave them alive."""
    with two_processes(tmp_path_factory.mktemp("two") / "load.log") as processes:
        yield processes


@contextlib.contextmanager
def two_processes(log_path: Path) -> Iterator[LocustProcesses]:
    processes = LocustProcesses(locustfile_path("chat"), 2, log_path)
    try:
        yield processes
    finally:
        processes.stop()


def request(name: str, kind: str = PROMPT, after_s: float = 0.0) -> WireRequest:
    """One that ends at once, one that never does, or one that is due in an hour."""
    script = {"mode": "forever" if kind == ENDLESS else "plain", "ttft_ms": 1, "itl_ms": 5,
              "tokens": 4}  # fmt: skip
    body = {"stream": True, "stream_options": {"include_usage": True}, "script": script}
    offset_s = 3600.0 if kind == LATE else after_s
    return WireRequest(request_id=name, kind="normal", body=json.dumps(body).encode(),
                       offset_ns=round(offset_s * NS_PER_S), prompt_tokens=7)  # fmt: skip


def share(url: str, process: int, requests: list[WireRequest]) -> WirePlan:
    return WirePlan(process=process, url=url, path="/v1/completions", headers={},
                    requests=requests, concurrency=None, timeout_s=600.0)  # fmt: skip


def shares(url: str, *kinds: str) -> list[WirePlan]:
    """One request of each kind for each of two processes."""
    return [
        share(url, process, [request(f"{kind}-{process}", kind) for kind in kinds])
        for process in (0, 1)
    ]


def load_processes() -> list[psutil.Process]:
    """The load processes that this one has started."""
    children = psutil.Process().children()
    return [one for one in children if "locust" in one.cmdline()]


def once(is_time: Callable[[LoadProgress], bool], act: Callable[[], None]) -> Callable[..., None]:
    """A watch that acts at the first report of which `is_time` holds."""
    done: list[LoadProgress] = []

    def watch(progress: LoadProgress) -> None:
        if not done and is_time(progress):
            done.append(progress)
            act()

    return watch


def test_two_processes_carry_out_their_shares_and_begin_together(
    two: LocustProcesses, url: str
) -> None:
    names = [[f"r{process}-{at}" for at in range(20)] for process in (0, 1)]
    plans = [
        share(url, process, [request(name, after_s=0.03 * at) for at, name in enumerate(names_of)])
        for process, names_of in enumerate(names)
    ]
    seen: list[LoadProgress] = []
    results = two.run(plans, seen.append)
    assert [[one.request_id for one in result.samples] for result in results] == names
    samples = [one for result in results for one in result.samples]
    assert {one.status for one in samples} == {Status.OK}
    assert [one.process for one in samples] == [0] * 20 + [1] * 20
    assert {one.output_tokens for one in samples} == {4}
    assert len({one.started_ns for one in results}) == 1, "one start for both"
    assert [one.process for one in (result.health for result in results)] == [0, 1]
    # every process says how far it is, the last of them at the end
    assert (seen[-1].planned, seen[-1].finished, seen[-1].ok) == (40, 40, 40)
    assert seen[-1].output_tokens == 160
    assert sum(len(one.ttft_ms) for one in seen) == 40, "each latency is handed on once"


def test_the_same_processes_carry_out_one_plan_after_the_other(
    two: LocustProcesses, url: str
) -> None:
    pids = {one.pid for one in load_processes()}
    for number in range(3):
        plans = [share(url, process, [request(f"n{number}-{process}")]) for process in (0, 1)]
        # one share fewer than there are processes is a plan, too
        results = two.run(plans[: 1 + number % 2])
        assert [one.samples[0].request_id for one in results] == [
            f"n{number}-{process}" for process in range(1 + number % 2)
        ]
    assert {one.pid for one in load_processes()} == pids


@pytest.mark.parametrize("when", ["while it waits", "while it shows"])
def test_an_interrupt_keeps_what_was_measured_and_accounts_for_the_rest(
    two: LocustProcesses, url: str, when: str
) -> None:
    def interrupt() -> None:
        if when == "while it shows":
            raise KeyboardInterrupt
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()

    plans = shares(url, PROMPT, ENDLESS, LATE)
    watch = once(lambda seen: seen.ok == 2 and seen.in_flight == 2, interrupt)
    with pytest.raises(LoadInterrupted) as caught:
        two.run(plans, watch)
    found = [one for result in caught.value.results for one in result.samples]
    assert len(found) == sum(len(plan.requests) for plan in plans)
    ended = {one.request_id.partition("-")[0]: (one.status, one.error) for one in found}
    assert ended == {
        PROMPT: (Status.OK, SampleError.NONE),
        ENDLESS: (Status.INCOMPLETE, SampleError.STOPPED),
        LATE: (Status.UNSENT, SampleError.STOPPED),
    }
    # and they are ready for the next one
    again = two.run([share(url, 0, [request("again")]), share(url, 1, [request("once more")])])
    assert [one.samples[0].status for one in again] == [Status.OK, Status.OK]


def test_an_interrupt_before_the_first_request_sends_none(two: LocustProcesses, url: str) -> None:
    watch = once(lambda _: True, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(LoadInterrupted) as caught:
        two.run(shares(url, LATE, LATE), watch)
    found = [one for result in caught.value.results for one in result.samples]
    assert [one.status for one in found] == [Status.UNSENT] * 4
    assert all(one.sent_ns is None for one in found)


def test_a_load_process_that_is_killed_is_one_line_and_stopping_ends_the_others(
    tmp_path: Path, url: str
) -> None:
    before = load_processes()
    log_path = tmp_path / "load.log"
    with two_processes(log_path) as processes:
        started = [one for one in load_processes() if one not in before]
        victim, other = started
        watch = once(lambda seen: seen.in_flight == 2, victim.kill)
        began_s = time.monotonic()
        with pytest.raises(TargetError) as caught:
            processes.run(shares(url, ENDLESS), watch)
        assert time.monotonic() - began_s < PATIENCE_S
        message = str(caught.value)
        assert "\n" not in message and "signal 9" in message and str(log_path) in message
        processes.stop()
        assert not victim.is_running() and not other.is_running()


def test_a_load_process_that_is_frozen_is_not_waited_for(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locust_processes, "SILENCE_S", 3.0)
    monkeypatch.setattr(locust_processes, "ABORT_TIMEOUT_S", 1.0)
    monkeypatch.setattr(locust_processes, "QUIT_TIMEOUT_S", 1.0)
    before = load_processes()
    with two_processes(tmp_path / "load.log") as processes:
        victim = next(one for one in load_processes() if one not in before)
        watch = once(lambda seen: seen.in_flight == 2, victim.suspend)
        with pytest.raises(TargetError, match="a load process") as caught:
            processes.run(shares(url, ENDLESS), watch)
        assert "\n" not in str(caught.value)
        processes.stop()
        assert not victim.is_running()


def test_stopping_ends_the_processes_in_the_middle_of_a_run_and_may_be_repeated(
    tmp_path: Path, url: str
) -> None:
    before = load_processes()
    processes = LocustProcesses(locustfile_path("chat"), 2, tmp_path / "load.log")
    started = [one for one in load_processes() if one not in before]
    assert len(started) == 2
    stop = once(lambda seen: seen.in_flight == 2, lambda: (_ for _ in ()).throw(EOFError))
    with pytest.raises(EOFError):
        processes.run(shares(url, ENDLESS), stop)
    processes.stop()
    assert not any(one.is_running() for one in started)
    processes.stop()


def test_what_a_process_said_last_and_where_its_log_is_stand_in_the_error(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise RuntimeError('this locustfile is broken')\n")
    log_path = tmp_path / "load.log"
    before = load_processes()
    with pytest.raises(TargetError) as caught:
        LocustProcesses(broken, 1, log_path)
    message = str(caught.value)
    assert "\n" not in message and "this locustfile is broken" in message
    assert str(log_path) in message
    assert load_processes() == before


def test_a_plan_that_cannot_be_carried_out_is_said_and_the_processes_live_on(
    two: LocustProcesses, url: str
) -> None:
    bad = share("http://127.0.0.1:port", 0, [request("r")])
    with pytest.raises(TargetError, match=r"a load process failed: .*port") as caught:
        two.run([bad, share(url, 1, [request("other", ENDLESS)])])
    assert "\n" not in str(caught.value)
    again = two.run([share(url, 0, [request("again")]), share(url, 1, [request("once more")])])
    assert [one.samples[0].status for one in again] == [Status.OK, Status.OK]


PARENT = """
import sys
sys.path.insert(0, {folder!r})
from pathlib import Path
import test_locust_processes as tests
from dstune.load.client.command import locustfile_path
from dstune.load.locust_processes import LocustProcesses
processes = LocustProcesses(locustfile_path("chat"), 2, Path("load.log"))
say = lambda: print("running", flush=True)
watch = tests.once(lambda seen: seen.in_flight == 2, say)
processes.run(tests.shares({url!r}, tests.ENDLESS), watch)
"""


def test_kill_9_of_the_parent_leaves_no_load_process_behind(tmp_path: Path, url: str) -> None:
    program = PARENT.format(folder=str(Path(__file__).parent), url=url)
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, text=True,
                              stdout=subprocess.PIPE)  # fmt: skip
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "running\n"
        children = psutil.Process(parent.pid).children(recursive=True)
        assert len(children) == 2
        parent.kill()
    assert psutil.wait_procs(children, timeout=PATIENCE_S)[1] == []
