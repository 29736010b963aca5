"""A real load process and a real scripted server, as the tests of the client use them."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dstune.load.client.command import command, locustfile_path
from dstune.load.wire import WirePlan, WireRequest, WireResult, read_result, write_plan

SERVER = Path(__file__).parent / "scripted_server.py"
PATIENCE_S = 60.0


@contextlib.contextmanager
def scripted_server(*options: str) -> Iterator[str]:
    """A scripted server's URL; it ends with the block."""
    process = subprocess.Popen(
        [sys.executable, str(SERVER), "--with-parent", *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None and process.stdin is not None
        port = int(process.stdout.readline().split()[1])
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.stdin.close()
            process.wait(10)


def ask(url: str, path: str, body: object) -> Any:
    """One request beside the load."""
    request = urllib.request.Request(url + path, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        return json.load(response)


class Child:
    """One load process, steered as dstune steers it."""

    def __init__(self, folder: Path, process: int = 0) -> None:
        self.folder = folder
        self._number = process
        self._log = folder / f"client-{process}.log"
        self._ours, theirs = socket.socketpair()
        self._ours.settimeout(PATIENCE_S)
        with theirs, self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command(locustfile_path("chat"), theirs.fileno(), process),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
            )
        self._received = b""
        self.progress: list[dict[str, Any]] = []
        self.await_event("ready")

    def send(self, **order: object) -> None:
        """One order."""
        self._ours.sendall(json.dumps(order).encode() + b"\n")

    def next_event(self) -> dict[str, Any]:
        """The next event, whatever it is."""
        while b"\n" not in self._received:
            data = self._ours.recv(1 << 16)
            assert data, f"the client died: {self._log.read_text()}"
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        event: dict[str, Any] = json.loads(line)
        if event["event"] == "progress":
            self.progress.append(event)
        return event

    def await_event(self, name: str) -> dict[str, Any]:
        """Skips events until one of that name."""
        while True:
            event = self.next_event()
            if event["event"] == name:
                return event
            assert event["event"] != "error", event

    def begin(self, plan: WirePlan, start_ns: int | None = None) -> Path:
        """Begins a run; its result will be at the path."""
        path, result = (self.folder / f"{name}-{self._number}" for name in ("plan", "result"))
        write_plan(path, plan)
        result.unlink(missing_ok=True)
        self.progress = []
        self.send(op="run", plan=str(path), result=str(result), start_ns=start_ns)
        return result

    def run(self, plan: WirePlan, start_ns: int | None = None) -> WireResult:
        """Carries out a plan."""
        result = self.begin(plan, start_ns)
        self.await_event("ran")
        return read_result(result)

    def close(self) -> None:
        """The parent goes away; the process must end by itself."""
        self._ours.close()
        assert self.process.wait(10) == 0, self._log.read_text()


def body(number: int = 0, **script: object) -> bytes:
    """A request's body that asks the scripted server for something."""
    asked = {"id": str(number), "stream_options": {"include_usage": True}, "script": script}
    return json.dumps(asked).encode()


def request(
    number: int = 0, script: Mapping[str, object] | None = None, **given: Any
) -> WireRequest:
    """One request; by default at once, plain, and prompt."""
    values = {
        "request_id": f"r{number}",
        "kind": "normal",
        "body": body(number, **(script or {})),
        "offset_ns": 0,
        "prompt_tokens": 5,
    }
    return WireRequest(**(values | given))


def plan(url: str, requests: list[WireRequest], **given: Any) -> WirePlan:
    """A plan of one process, open loop by default."""
    values = {
        "process": 0,
        "url": url,
        "path": "/v1/completions",
        "headers": {"x-asked": "yes"},
        "requests": requests,
        "concurrency": None,
        "timeout_s": 30.0,
    }
    return WirePlan(**(values | given))


def soon(ms: float = 200) -> int:
    """A start that gives two processes time to be ready."""
    return time.monotonic_ns() + round(ms * 1e6)
