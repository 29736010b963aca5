"""The HTTP front for tests: a process as a parent steers it, and plain clients over sockets."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

MODEL = "tiny-deepseek"
PATIENCE_S = 30.0


class SteeredFront:
    """`python -m dstune.server --http` with the bundled model; a context manager."""

    def __init__(self, knobs: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dstune.server", "--http"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        opened = self.ask({"op": "open", "model": MODEL, "weights": "auto", "device": "cpu"})
        self.port = int(opened["url"].rpartition(":")[2])
        self.configured = self.ask({"op": "configure", "knobs": knobs})

    def __enter__(self) -> SteeredFront:
        return self

    def __exit__(self, *exc: object) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(PATIENCE_S)
        self.process.stdout.close()

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """Sends a command; returns the event that answers it."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()
        while (event := json.loads(self.process.stdout.readline()))["event"] == "progress":
            pass
        return dict(event)


def send(port: int, path: str, document: Any = None, method: str = "") -> tuple[int, Any, Any]:
    """(status, headers, body) of one request; JSON bodies come parsed."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    body = None if document is None else json.dumps(document)
    connection.request(method or ("GET" if body is None else "POST"), path, body)
    answer = connection.getresponse()
    raw = answer.read()
    connection.close()
    is_json = answer.headers.get_content_type() == "application/json"
    return answer.status, answer.headers, json.loads(raw) if is_json else raw.decode()


def complete(port: int, **asked: Any) -> dict[str, Any]:
    """The answer to a completion that succeeds."""
    status, _, answer = send(port, "/v1/completions", {"model": MODEL, **asked})
    assert status == 200, answer
    return dict(answer)


def stream(port: int, path: str = "/v1/completions", **asked: Any) -> list[dict[str, Any]]:
    """The events of a stream that ends as it should."""
    asked = {"model": MODEL, "stream": True, **asked}
    status, headers, text = send(port, path, asked)
    assert status == 200, text
    assert headers["content-type"].startswith("text/event-stream")
    return events(text)


def events(text: str) -> list[dict[str, Any]]:
    """The JSON events of a whole stream, whose last word is [DONE]."""
    found = [one.removeprefix("data: ") for one in text.split("\n\n") if one]
    assert found[-1] == "[DONE]", text
    return [json.loads(one) for one in found[:-1]]


def texts(stream_events: list[dict[str, Any]], choice: int = 0) -> str:
    """The text of one choice of a stream of completions."""
    parts = [one for event in stream_events for one in event["choices"] if one["index"] == choice]
    return "".join(one["text"] for one in parts)


class Hanging:
    """A request whose client can hang up; `read` waits for bytes of the answer."""

    def __init__(self, port: int, **asked: Any) -> None:
        body = json.dumps({"model": MODEL, **asked}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: {len(body)}\r\n\r\n"
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.socket.sendall(head.encode() + body)

    def read(self) -> bytes:
        """What has come, at least a byte; b'' at the end."""
        return self.socket.recv(1 << 16)

    def read_all(self) -> bytes:
        """Everything until the server ends the answer (or the connection)."""
        found = b""
        while not found.endswith(b"0\r\n\r\n") and (more := self.read()):
            found += more
        return found

    def hang_up(self) -> None:
        """Closes the connection."""
        self.socket.close()


def gauges(port: int) -> dict[str, float]:
    """Plain values of /metrics by their name without prefix and labels."""
    _, _, text = send(port, "/metrics")
    return dict(_values(text))


def _values(text: str) -> Iterator[tuple[str, float]]:
    for line in text.split("\n"):
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            yield name.partition("{")[0].removeprefix("dstune:"), float(value)


def wait_for(is_true: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Fails when it has not become true in time."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
