"""Load: Locust as child processes, long-lived, each carrying out its share of a plan.

One socket per child carries JSON lines both ways (the protocol is told in `load/client`). A child
ends by itself when the socket closes, so no kill of the parent leaves one behind.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from dstune.errors import TargetError
from dstune.load.client.command import command
from dstune.load.wire import WirePlan, WireResult, read_result, write_plan
from dstune.measure.progress import LoadProgress

START_TIMEOUT_S = 60.0
QUIT_TIMEOUT_S = 5.0
ABORT_TIMEOUT_S = 20.0
SILENCE_S = 60.0  # it reports four times a second, once it has read its plan
LEAD_NS = 200_000_000  # from the command to the first request: plans are read, all begin together
LEAD_PER_REQUEST_NS = 20_000

Watch = Callable[[LoadProgress], None]


class LoadInterrupted(KeyboardInterrupt):
    """The load was interrupted; `results` hold what was measured until then."""

    def __init__(self, results: list[WireResult]) -> None:
        super().__init__("the load was interrupted")
        self.results = results


@dataclass
class _Child:
    process: subprocess.Popen[bytes]
    channel: socket.socket
    received: bytearray = field(default_factory=bytearray)
    is_running: bool = False
    progress: dict[str, Any] = field(default_factory=dict)


class LocustProcesses:
    """`num_processes` Locust children that are ready to carry out plans."""

    def __init__(self, locustfile: Path, num_processes: int, log_path: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="dstune-load-")
        self._log_path = log_path
        self._children: list[_Child] = []
        try:
            with log_path.open("ab") as log:
                for index in range(num_processes):
                    self._children.append(_start(locustfile, index, log))
            for child in self._children:
                self._await(child, "ready", time.monotonic() + START_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise

    def run(self, plans: Sequence[WirePlan], watch: Watch | None = None) -> list[WireResult]:
        """Carries out one share per process; they begin at the same moment.

        Raises `TargetError` when a process died, `LoadInterrupted` with what was measured when a
        `KeyboardInterrupt` came. Whatever ends it, no process is left in the middle of it.
        """
        folder = Path(self._folder.name)
        results = [folder / f"result-{index}.msgpack" for index in range(len(plans))]
        planned = sum(len(plan.requests) for plan in plans)
        lead_ns = LEAD_NS + planned * LEAD_PER_REQUEST_NS
        running = self._children[: len(plans)]
        paths = [folder / f"plan-{index}.msgpack" for index in range(len(plans))]
        for path, plan, result in zip(paths, plans, results, strict=True):
            write_plan(path, plan)
            result.unlink(missing_ok=True)
        start_ns = time.monotonic_ns() + lead_ns
        try:
            for child, path, result in zip(running, paths, results, strict=True):
                child.progress, child.is_running = {}, True
                order = {"op": "run", "plan": str(path), "result": str(result)}
                self._send(child, {**order, "start_ns": start_ns})
            self._follow(running, planned, start_ns, watch)
        except BaseException as error:
            self._abort(running)
            if isinstance(error, KeyboardInterrupt) and all(one.is_file() for one in results):
                raise LoadInterrupted([read_result(one) for one in results]) from None
            raise
        return [read_result(one) for one in results]

    def stop(self) -> None:
        """Ends the children: asked first, killed when they do not; harmless when called twice."""
        for child in self._children:
            with contextlib.suppress(OSError):
                _write(child, {"op": "quit"})
            child.channel.close()
        deadline = time.monotonic() + QUIT_TIMEOUT_S
        for child in self._children:
            try:
                child.process.wait(max(deadline - time.monotonic(), 0.001))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
        self._children = []
        self._folder.cleanup()

    def _send(self, child: _Child, order: dict[str, Any]) -> None:
        try:
            _write(child, order)
        except OSError:
            raise self._death(child) from None

    def _abort(self, running: Sequence[_Child]) -> None:
        """Ends the run of those that are still at it, and waits until they have ended it."""
        busy = [child for child in running if child.is_running]
        for child in busy:
            self._send(child, {"op": "abort"})
        deadline = time.monotonic() + ABORT_TIMEOUT_S
        for child in busy:
            if child.is_running:
                self._await(child, "ran", deadline)

    def _follow(
        self, running: Sequence[_Child], planned: int, start_ns: int, watch: Watch | None
    ) -> None:
        """Reads every child's events until all have ended their run."""
        with selectors.DefaultSelector() as selector:
            for child in running:
                selector.register(child.channel, selectors.EVENT_READ, child)
            heard_s = dict.fromkeys((child.channel for child in running), time.monotonic())
            while selector.get_map():
                ready = selector.select(SILENCE_S / 4)
                self._check_silence(heard_s, selector)
                for key, _ in ready:
                    child = cast(_Child, key.data)
                    heard_s[child.channel] = time.monotonic()
                    for event in self._receive(child):
                        if event["event"] == "ran":
                            selector.unregister(child.channel)
                        elif event["event"] == "progress":
                            child.progress = event
                            if watch is not None:
                                watch(_together(running, planned, start_ns))
                                _forget_recent(running)

    def _check_silence(
        self, heard_s: dict[socket.socket, float], selector: selectors.BaseSelector
    ) -> None:
        """Raises `TargetError` for a process that is there and does not move any more."""
        waiting = [cast(socket.socket, key.fileobj) for key in selector.get_map().values()]
        if min(heard_s[one] for one in waiting) < time.monotonic() - SILENCE_S:
            raise TargetError(
                f"a load process has said nothing for {SILENCE_S:.0f} s: is it stopped, or the "
                f"machine out of memory? its log is {self._log_path}"
            )

    def _await(self, child: _Child, name: str, deadline: float) -> None:
        """Waits for one event of a child; raises `TargetError` when it does not come in time."""
        while True:
            child.channel.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                if any(event["event"] == name for event in self._receive(child)):
                    child.channel.settimeout(None)
                    return
            except TimeoutError:
                message = f"a load process did not answer in time; its log is {self._log_path}"
                raise TargetError(message) from None

    def _receive(self, child: _Child) -> list[dict[str, Any]]:
        """The events that are there, once there is one; raises what a child says went wrong."""
        try:
            data = child.channel.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            raise self._death(child)
        child.received += data
        *lines, rest = child.received.split(b"\n")
        child.received = bytearray(rest)
        events: list[dict[str, Any]] = [json.loads(line) for line in lines]
        for event in events:
            if event["event"] in ("ran", "error"):
                child.is_running = False
            if event["event"] == "error":
                why = " ".join(event["message"].split())
                raise TargetError(f"a load process failed: {why}; its log is {self._log_path}")
        return events

    def _death(self, child: _Child) -> TargetError:
        """Why a process is gone, in one line: its log's last words and the signal or status."""
        child.is_running = False
        log = f"; its log is {self._log_path}"
        try:
            status = child.process.wait(QUIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return TargetError(f"a load process closed its channel{log}")
        if status < 0:
            cause = " (out of memory?)" if status == -signal.SIGKILL else ""
            return TargetError(f"a load process was killed by signal {-status}{cause}{log}")
        lines = self._log_path.read_text(errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
        return TargetError(f"a load process exited with status {status}: {said}{log}")


def _write(child: _Child, order: dict[str, Any]) -> None:
    child.channel.sendall(json.dumps(order).encode() + b"\n")


def _start(locustfile: Path, index: int, log: Any) -> _Child:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            command(locustfile, theirs.fileno(), index),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    return _Child(process, ours)


def _together(children: Sequence[_Child], planned: int, start_ns: int) -> LoadProgress:
    """The counts of all processes, added up."""
    reports = [child.progress for child in children if child.progress]

    def total(name: str) -> int:
        return sum(report[name] for report in reports)

    def recent(name: str) -> tuple[float, ...]:
        return tuple(value for report in reports for value in report.get(name, ()))

    errors: dict[str, int] = {}
    for report in reports:
        for kind, count in report["errors"].items():
            errors[kind] = errors.get(kind, 0) + count
    return LoadProgress(
        planned=planned,
        finished=total("finished"),
        sent=total("sent"),
        in_flight=total("in_flight"),
        ok=total("ok"),
        output_tokens=total("output_tokens"),
        elapsed_s=max(time.monotonic_ns() - start_ns, 0) / 1e9,
        errors=errors,
        hostile=total("anomalies"),
        hostile_as_expected=total("handled"),
        ttft_ms=recent("ttft_ms"),
        tpot_ms=recent("tpot_ms"),
        e2e_ms=recent("e2e_ms"),
        itl_ms=recent("itl_ms"),
    )


def _forget_recent(children: Sequence[_Child]) -> None:
    """Latencies were handed on once; the counts stay."""
    for child in children:
        for name in ("ttft_ms", "tpot_ms", "e2e_ms", "itl_ms"):
            child.progress.pop(name, None)
