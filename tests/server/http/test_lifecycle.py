"""How it ends: a step that fails, a killed engine, signals under load, a parent that is gone."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import uvloop
from fronts import MODEL, PATIENCE_S, Hanging, SteeredFront, complete, gauges, send, wait_for

from dstune.server.http.front import Front
from dstune.server.http.options import ServerOptions

KNOBS = {"max_num_seqs": 2, "max_model_len": 4096, "kv_cache_memory_bytes": 64_000_000}
LONG = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True}
FAILING = """
import dstune.engine.engine as engine
real = engine.Engine.step
def step(self):
    self.num = getattr(self, "num", 0) + 1
    if self.num > 20:
        raise RuntimeError("the step that fails")
    return real(self)
engine.Engine.step = step
from dstune.server.__main__ import main
main(["--child"])
"""
FOREGROUND = f"""
import sys
from dstune.server.http.front import serve
from dstune.server.http.options import ServerOptions
options = ServerOptions(port=0, max_waiting=2, drain_s=1.0)
knobs = {KNOBS!r}
sys.exit(serve(options, {MODEL!r}, "auto", "cpu", knobs, lambda url: print(url, flush=True)))
"""


def with_front(engine_command: list[str], check: Callable[[Front, int], Awaitable[None]]) -> None:
    async def run() -> None:
        front = Front(ServerOptions(port=0), engine_command)
        try:
            await front.open(MODEL, "auto", "cpu", keeps_steps=False)
            await front.configure(KNOBS)
            url = await front.listen(has_access_log=False)
            await check(front, int(url.rpartition(":")[2]))
        finally:
            front.engine.stop()

    uvloop.run(run())


def test_a_step_that_fails_is_told_to_everybody(capfd: pytest.CaptureFixture[str]) -> None:
    async def check(front: Front, port: int) -> None:
        path, asked = "/v1/completions", {"model": MODEL, **LONG}
        streamed, whole = await asyncio.gather(
            asyncio.to_thread(send, port, path, {**asked, "stream": True}),
            asyncio.to_thread(send, port, path, asked),
        )
        assert streamed[0] == 200 and whole[0] == 500
        *_, error, done = [one for one in streamed[2].split("\n\n") if one]
        assert json.loads(error.removeprefix("data: "))["error"]["type"] == "server_error"
        assert done == "data: [DONE]"
        assert "the step that fails" not in json.dumps(whole[2])  # it is for the log
        assert (await asyncio.to_thread(send, port, "/health"))[0] == 503
        assert (await asyncio.to_thread(send, port, path, asked))[0] == 500
        assert front.engine.death is not None
        assert "status 5" in front.engine.death and "the step that fails" in front.engine.death
        assert front.service.num_flights == 0 and front.engine.num_open == 0

    with_front([sys.executable, "-c", FAILING], check)
    assert "Traceback" in capfd.readouterr().err


def test_a_killed_engine_is_told_to_clients_and_to_the_parent() -> None:
    with SteeredFront(KNOBS) as front:
        running = Hanging(front.port, **LONG, stream=True)
        assert running.read()
        (engine,) = psutil.Process(front.process.pid).children()
        engine.kill()
        assert b'"server_error"' in running.read_all()
        running.hang_up()
        assert send(front.port, "/health")[0] == 503
        answer = front.ask({"op": "steps"})
        assert answer["kind"] == "TargetError" and "signal 9" in answer["message"]


def test_everything_ends_with_the_parents_pipe_also_under_load() -> None:
    front = SteeredFront(KNOBS)
    running = Hanging(front.port, **LONG, stream=True)
    assert running.read()
    tree = [psutil.Process(front.process.pid)]
    tree += tree[0].children(recursive=True)
    assert len(tree) == 2
    assert front.process.stdin is not None and front.process.stdout is not None
    front.process.stdin.close()
    assert psutil.wait_procs(tree, timeout=5)[1] == []
    front.process.stdout.close()
    running.hang_up()


def test_a_killed_front_leaves_no_engine() -> None:
    front = SteeredFront(KNOBS)
    running = Hanging(front.port, **LONG)
    (engine,) = psutil.Process(front.process.pid).children()
    front.process.kill()
    front.process.wait()
    assert psutil.wait_procs([engine], timeout=5)[1] == []
    running.hang_up()
    assert front.process.stdin is not None and front.process.stdout is not None
    front.process.stdin.close()
    front.process.stdout.close()


def test_a_full_queue_and_sigterm_under_load() -> None:
    command = [sys.executable, "-c", FOREGROUND]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline().rpartition(":")[2])
    (engine,) = psutil.Process(process.pid).children()
    streamed = [Hanging(port, **LONG, stream=True) for _ in range(2)]
    for one in streamed:
        assert one.read()
    asked = {"model": MODEL, **LONG}
    with ThreadPoolExecutor(2) as pool:
        queued = [pool.submit(send, port, "/v1/completions", asked) for _ in range(2)]
        # two run and two wait: there is room for no more
        wait_for(lambda: gauges(port)["num_requests_waiting"] == 2)
        status, headers, body = send(port, "/v1/completions", asked)
        assert status == 503 and int(headers["retry-after"]) >= 1
        assert body["error"]["code"] == "queue_full"
        assert send(port, "/health")[0] == 200
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: send(port, "/health")[0] == 503)
        status, _, body = send(port, "/v1/completions", asked)
        assert status == 503 and body["error"]["code"] == "shutting_down"
        for one in streamed:
            last = one.read_all()
            assert b'"shutting_down"' in last and last.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        for waiting in queued:
            assert waiting.result()[0] == 503
    assert process.wait(PATIENCE_S) == 0
    assert time.monotonic() - began >= 1.0  # they had their time
    assert psutil.wait_procs([engine], timeout=5)[1] == []
    process.stdout.close()
    for one in streamed:
        one.hang_up()


def test_sigterm_lets_what_is_under_way_finish() -> None:
    with SteeredFront(KNOBS) as front, ThreadPoolExecutor(1) as pool:
        short = {**LONG, "max_tokens": 150}
        running = pool.submit(complete, front.port, **short)
        wait_for(lambda: bool(front.ask({"op": "steps"})["steps"]))
        front.process.send_signal(signal.SIGTERM)
        assert running.result()["usage"]["completion_tokens"] == 150
        assert front.process.wait(PATIENCE_S) == 0


def test_the_front_does_without_torch() -> None:
    program = "import sys, dstune.server.http.steering; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
