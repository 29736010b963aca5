"""Target: a server that a command starts for us: any OpenAI-compatible one.

The command names its port as {port}. It runs in a process group of its own, so that all that it
starts is stopped with it, and its output goes to the log.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dstune.errors import TargetError, UsageError
from dstune.knobs import KnobValue
from dstune.load.plan import LoadPlan
from dstune.target import http
from dstune.target.target import Configured, LoadResult, Progress
from dstune.target.url import UrlTarget

START_TIMEOUT_S = 900.0  # a large model's weights, or a first compilation
POLL_S = 0.2
STOP_TIMEOUT_S = 10.0
PORT = "{port}"


@dataclass(frozen=True)
class ServerCommand:
    """How a server is started: its command line with {port} in it, and where."""

    line: str
    cwd: Path | None = None

    def __post_init__(self) -> None:
        if PORT not in self.line:
            raise UsageError(f"the command must say where its port goes, as {PORT}: {self.line}")


class CommandTarget:
    """A server of ours, reached as any other at a URL."""

    def __init__(
        self, command: ServerCommand, model: str, log_path: Path, num_processes: int = 1
    ) -> None:
        self._log_path = log_path
        self._log_start = log_path.stat().st_size if log_path.exists() else 0
        port = _free_port()
        arguments = shlex.split(command.line.replace(PORT, str(port)))
        with log_path.open("ab") as log:
            try:
                self._process = subprocess.Popen(
                    arguments, cwd=command.cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise UsageError(f"cannot start {arguments[0]}: {error.strerror}") from None
        self._server: UrlTarget | None = None
        try:
            url = f"http://127.0.0.1:{port}"
            self._wait_until_ready(url)
            self._server = UrlTarget(url, model, log_path, num_processes, None)
        except BaseException:
            self.stop()
            raise

    def configure(self, knobs: Mapping[str, KnobValue]) -> Configured:
        """What the server says of itself is in force: its command line configured it."""
        return self._reached().configure(knobs)

    def tokenize(self, text: str) -> list[int]:
        """See `UrlTarget`."""
        return self._reached().tokenize(text)

    def reset_caches(self) -> None:
        """See `UrlTarget`."""
        self._reached().reset_caches()

    def run(self, plan: LoadPlan, progress: Progress | None = None) -> LoadResult:
        """Carries out a plan; raises `TargetError` with the log's words when the server died."""
        result = self._reached().run(plan, progress)
        if self._process.poll() is not None:
            raise self._death()
        return result

    def stop(self) -> None:
        """Ends the load processes, then the server with all that it started: asked, then killed."""
        if self._server is not None:
            self._server.stop()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT_S)
        # what its leader left behind is still of the group

    def _reached(self) -> UrlTarget:
        assert self._server is not None
        return self._server

    def _wait_until_ready(self, url: str) -> None:
        give_up = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < give_up:
            if self._process.poll() is not None:
                raise self._death()
            with contextlib.suppress(http.NoAnswer):
                if http.get(url + "/v1/models", {}, timeout_s=5.0).status == 200:
                    return
            time.sleep(POLL_S)
        raise TargetError(
            f"the server did not answer within {START_TIMEOUT_S:g} s; its log is {self._log_path}"
        )

    def _death(self) -> TargetError:
        """Why the server ended: the first error of its log, for the last line is often generic."""
        data = self._log_path.read_bytes()[self._log_start :].decode("utf-8", "replace")
        lines = [line.strip() for line in data.split("\n") if line.strip()]
        said = next((one for one in lines if "Error: " in one), lines[-1] if lines else "no word")
        status = self._process.wait()
        return TargetError(
            f"the server ended with status {status}: {said[:300]}; its log is {self._log_path}"
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
