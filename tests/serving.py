"""`dstune serve` as a process of its own, on the bundled model, for tests over real sockets."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import psutil

from dstune.measure.server_metrics import ServerMetrics, read_metrics

MODEL = "tiny-deepseek"
SMALL = ("--set", "max_num_seqs=8", "--set", "max_model_len=256", "--max-waiting", "8")
START_S = 60.0


class Served:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str], url: str, log: Any) -> None:
        self.process = process
        self.url = url
        self._log = log
        self.address = (urlsplit(url).hostname, urlsplit(url).port)

    def post(
        self, path: str, body: bytes | Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request on a connection of its own, with the answer read to its end."""
        with self.send(path, body, headers) as connection:
            return read_answer(connection)

    def send(
        self, path: str, body: bytes | Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> socket.socket:
        """The connection of a request that has been sent."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(data)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        lines.append("Connection: close")
        connection = socket.create_connection(self.address, timeout=60)
        connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        return connection

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        """A GET."""
        lines = [f"GET {path} HTTP/1.1", "Host: x", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        with socket.create_connection(self.address, timeout=60) as connection:
            connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
            return read_answer(connection)

    def metrics(self) -> ServerMetrics:
        """What the server says of itself."""
        return read_metrics(self.get("/metrics").body.decode())

    def is_idle(self) -> bool:
        """Whether nothing runs or waits and every KV block is free."""
        values = self.metrics().values
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        return all(values[name] == 0 for name in names)

    def rss_bytes(self) -> int:
        """Memory of the front and of the engine's process."""
        front = psutil.Process(self.process.pid)
        return sum(one.memory_info().rss for one in (front, *front.children()))

    def log_text(self) -> str:
        """Standard error so far."""
        self._log.seek(0)
        return str(self._log.read())

    def log_lines(self) -> list[dict[str, Any]]:
        """The structured log so far; what is no JSON fails."""
        return [json.loads(line) for line in self.log_text().splitlines()]

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


class Answer:
    """Status, headers and whole body of an HTTP answer."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """The events of a stream; "[DONE]" as text."""
        found = re.findall(r"^data: (.*)$", self.body.decode(), re.MULTILINE)
        return [one if one == "[DONE]" else json.loads(one) for one in found]


def read_answer(connection: socket.socket) -> Answer:
    """The answer on a connection that the server closes behind it."""
    reader = connection.makefile("rb")
    status = int(reader.readline().split()[1])
    headers = {}
    while line := reader.readline().strip():
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    if headers.get("transfer-encoding") != "chunked":
        return Answer(status, headers, reader.read())
    parts = []
    while size := int(reader.readline(), 16):
        parts.append(reader.read(size))
        reader.readline()
    return Answer(status, headers, b"".join(parts))


@contextmanager
def serving(*arguments: str) -> Iterator[Served]:
    """A server with these arguments, gone at the end."""
    command = [sys.executable, "-m", "dstune", "serve", "--port", "0", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, text=True,
            env=environment,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            if found is None:
                process.wait(START_S)
                log.seek(0)
                raise AssertionError(f"it did not start: {log.read()}")
            yield Served(process, found[0], log)
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def wait_for(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether a condition holds before the time is up."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
