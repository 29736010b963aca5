"""Load client: the parent's commands over a socket, JSON lines both ways.

{"op": "run", "plan", "result", "start_ns"}  -> {"event": "progress", ...} ... {"event": "ran"}
{"op": "stop"}   no request begins any more; those in flight have the plan's `grace_s` to end
{"op": "abort"}  everything ends now; what was in flight is incomplete
{"op": "quit"}   the process ends, at once; so does the end of the socket: the parent is gone
At first comes {"event": "ready"}; what fails is {"event": "error", "message"}. `start_ns` is a
monotonic time, null for now. What `progress` holds is said by `Tally.report`.
"""

from __future__ import annotations

import _socket
import gc
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
from gevent.hub import get_hub

from dstune.load.client.alarms import Alarms
from dstune.load.client.receiver import make_receiver
from dstune.load.client.run import Run
from dstune.load.client.waiter import Waiter
from dstune.load.wire import read_plan, write_result
from dstune.measure.sample import Sample

PROGRESS_INTERVAL_S = 0.25
ROWS_PER_TURN = 32
_READ, _WRITE = 1, 2  # libev's

Command = dict[str, Any]


class Control:
    """The child's end of the socket. `on_request` is told each request that ended, later."""

    def __init__(self, fd: int, on_request: Callable[[Sample], None]) -> None:
        self._sock = _socket.socket(fileno=fd)
        self._sock.setblocking(False)
        self._on_request = on_request
        self._alarms = Alarms()
        self._waiter = Waiter(self._alarms)
        self._received = b""
        self._unsent = b""
        self._asked: Command | None = None
        self._run: Run | None = None
        self._ending = ""  # a stop or abort that came before the run began
        loop = get_hub().loop
        self._receiver = make_receiver(loop)
        self._readable = loop.io(fd, _READ)
        self._writable = loop.io(fd, _WRITE)
        self._readable.start(self._receive)

    def serve(self) -> None:
        """Carries out runs until the process ends."""
        self._send({"event": "ready"})
        while True:
            while self._asked is None:
                self._waiter.block()
            try:
                self._carry_out(self._asked)
                self._send({"event": "ran"})
            except Exception as error:
                logging.getLogger(__name__).exception("a run failed")
                self._send({"event": "error", "message": f"{type(error).__name__}: {error}"})

    def _carry_out(self, command: Command) -> None:
        try:
            run = Run(read_plan(Path(command["plan"])), self._alarms, self._receiver)
            self._run = run
            if self._ending:
                self._end(self._ending)
            reporter = gevent.spawn(self._report, run)
            try:
                result = run.carry_out(command["start_ns"])
            finally:
                reporter.kill()
                self._run = None
        finally:
            self._asked, self._ending = None, ""
        self._tell_locust(run)
        self._send(run.tally.report(0))
        write_result(Path(command["result"]), result)

    def _report(self, run: Run) -> None:
        while True:
            gevent.sleep(PROGRESS_INTERVAL_S)
            gc.collect(1)  # the young alone: what a run leaves behind, without the pause
            self._tell_locust(run)
            if not self._unsent:  # a parent that does not read misses reports, not memory
                self._send(run.tally.report(run.num_streaming_tokens))

    def _tell_locust(self, run: Run) -> None:
        rows = run.tally.unreported
        while rows:
            for _ in range(min(ROWS_PER_TURN, len(rows))):
                self._on_request(rows.popleft())
            gevent.sleep(0)

    def _receive(self) -> None:
        try:
            data = self._sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            _exit()
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            try:
                self._obey(json.loads(line))
            except Exception as error:  # gevent would stop watching for good
                logging.getLogger(__name__).exception("an order failed")
                self._send({"event": "error", "message": f"{type(error).__name__}: {error}"})

    def _obey(self, command: Command) -> None:
        match command["op"]:
            case "run":
                self._asked = command
                self._waiter.resume()
            case "stop" | "abort" as ending:
                self._end(ending)
            case "quit":
                _exit()
            case other:
                self._send({"event": "error", "message": f"unknown command {other!r}"})

    def _end(self, ending: str) -> None:
        if self._run is None:
            self._ending = ending if self._asked is not None else ""
        elif ending == "stop":
            self._run.stop()
        else:
            self._run.abort()

    def _send(self, event: dict[str, Any]) -> None:
        self._unsent += json.dumps(event).encode() + b"\n"
        self._flush()

    def _flush(self) -> None:
        try:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            _exit()
        self._writable.stop()
        if self._unsent:
            self._writable.start(self._flush)


def _exit() -> None:
    """Ends the process: nobody is left to read an answer, and nothing here needs to be saved."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
