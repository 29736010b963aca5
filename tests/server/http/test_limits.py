"""What stands in front of the app, on a real socket: uvicorn, the limits, and an app that echoes.

Requests are written byte by byte, since a client library would mend or refuse most of them.
"""

from __future__ import annotations

import io
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

import pytest
import uvicorn

from dstune.server.http.limits import Limits
from dstune.server.http.logs import AccessLog, log_to, note
from dstune.server.http.options import ServerOptions
from dstune.server.http.rate import AdaptiveBucket

KEY = "secret-key"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    message = await receive()
    assert not message["more_body"]
    note(scope, prompt_tokens=7)
    headers = [(b"content-length", str(len(message["body"])).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": message["body"]})


@contextmanager
def served(log: io.StringIO | None = None, **options: Any) -> Iterator[int]:
    """The port of a server with these options in front of `echo`."""
    app: Any = Limits(echo, ServerOptions(**options), load=lambda: 0.0)
    if log is not None:
        app = AccessLog(app)
        log_to(log)
    config = uvicorn.Config(app, port=0, log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        if log is not None:
            for name in ("dstune", "uvicorn"):
                logging.getLogger(name).handlers = []


def send(port: int, *pieces: bytes, pause_s: float = 0.0) -> tuple[int, dict[str, str], bytes]:
    """(status, headers, body) of what comes back until the server closes or is silent."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        for piece in pieces:
            try:
                connection.sendall(piece)
            except OSError:
                break  # the server has closed; its answer is there
            time.sleep(pause_s)
        return answer_on(connection)


def answer_on(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    reader = connection.makefile("rb")
    status = int(reader.readline().split()[1])
    headers = {}
    while (line := reader.readline().strip()) != b"":
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    return status, headers, reader.read(int(headers["content-length"]))


def post(body: bytes, *headers: str, path: str = "/v1/completions") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def code_of(body: bytes) -> str:
    return str(json.loads(body)["error"]["code"])


def test_a_body_within_the_bound_arrives_whole() -> None:
    with served() as port:
        body = bytes(range(256)) * 4096  # 1 MiB
        assert send(port, post(body))[2] == body
        chunked = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert (
            send(port, chunked, b"3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n", pause_s=0.05)[2]
            == b"abcde"
        )


def test_a_body_that_is_announced_too_large_is_refused_unread() -> None:
    with served(max_body_bytes=2_000_000) as port:
        head = post(b"", "X: y").replace(b"Content-Length: 0", b"Content-Length: 3000000")
        status, headers, body = send(port, head)  # not a byte of the body is sent
        assert (status, code_of(body), headers["connection"]) == (413, "body_too_large", "close")


def test_a_body_without_a_length_is_cut_while_it_comes_in() -> None:
    with served(max_body_bytes=2_000_000) as port:
        head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunk = b"186a0\r\n" + b"x" * 100_000 + b"\r\n"
        # 3 MB of an upload whose end never comes
        status, _, body = send(port, head, *[chunk] * 30)
        assert (status, code_of(body)) == (413, "body_too_large")


def test_a_client_that_sends_everything_first_still_reads_why() -> None:
    """Most libraries give up where the server closes while they send, with the answer unread."""
    with served(max_body_bytes=2_000_000) as port:
        for _ in range(5):
            client = HTTPConnection("127.0.0.1", port, timeout=10)
            client.request("POST", "/v1/completions", b"x" * 8_000_000)
            answer = client.getresponse()
            assert (answer.status, code_of(answer.read())) == (413, "body_too_large")
            client.close()


def test_a_slow_upload_ends_in_time_and_holds_nobody_up() -> None:
    with (
        served(body_timeout_s=0.5) as port,
        socket.create_connection(("127.0.0.1", port), timeout=10) as slow,
    ):
        slow.sendall(post(b"x" * 100)[:-60])
        assert send(port, post(b"abc"))[2] == b"abc"
        status, _, body = answer_on(slow)
        assert (status, code_of(body)) == (408, "body_timeout")
        assert slow.recv(1) == b""  # closed


def test_an_upload_that_breaks_off_leaves_the_server_alone() -> None:
    with served() as port:
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port)) as broken:
                broken.sendall(post(b"x" * 1000)[:-500])
        assert send(port, post(b"abc"))[2] == b"abc"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "GZIP", "identity, gzip"])
def test_compressed_bodies_are_refused(encoding: str) -> None:
    with served() as port:
        status, _, body = send(port, post(b"abc", f"Content-Encoding: {encoding}"))
        assert (status, code_of(body)) == (415, "unsupported_encoding")
        assert send(port, post(b"abc", "Content-Encoding: identity"))[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        [],
        ["Authorization: Bearer wrong"],
        ["Authorization: Bearer"],
        ["Authorization: Bearer secret-key2"],
        ["Authorization: Bearer secret-ke"],
        ["Authorization: Basic secret-key"],
        ["Authorization: secret-key"],
        ["Authorization: Bearer \xff\xfe"],
        ["Authorization: Bearer secret-key", "Authorization: Bearer secret-key"],
    ],
)
def test_without_the_key_every_route_but_health_is_401(headers: list[str]) -> None:
    with served(api_key=KEY) as port:
        for path in ("/v1/completions", "/metrics", "/v1/models", "/nowhere", "/health/"):
            status, answered, body = send(port, post(b"abc", *headers, path=path))
            assert (status, code_of(body)) == (401, "invalid_api_key")
            assert answered["www-authenticate"] == "Bearer"
        assert send(port, post(b"abc", *headers, path="/health"))[0] == 200


def test_with_the_key_requests_pass() -> None:
    with served(api_key=KEY) as port:
        for scheme in ("Bearer", "bearer"):
            assert send(port, post(b"abc", f"Authorization: {scheme} {KEY}"))[0] == 200


def test_above_the_rate_limit_is_429_with_a_time_to_come_back() -> None:
    with served(rate_limit_per_s=2.0) as port:
        answers = [send(port, post(b"abc")) for _ in range(8)]
        passed = [status for status, _, _ in answers if status == 200]
        refused = [one for one in answers if one[0] == 429]
        assert 3 <= len(passed) < 8 and len(passed) + len(refused) == 8
        assert code_of(refused[0][2]) == "rate_limit_exceeded"
        assert send(port, post(b"abc", path="/health"))[0] == 200
        time.sleep(int(refused[-1][1]["retry-after"]))
        assert send(port, post(b"abc"))[0] == 200


def test_a_refusal_before_the_body_keeps_the_connection() -> None:
    with served(rate_limit_per_s=0.01) as port:
        assert send(port, post(b"abc"))[0] == 200
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            for _ in range(3):
                connection.sendall(post(b"x" * 500_000))
                assert answer_on(connection)[0] == 429


def test_a_line_per_request_tells_no_content() -> None:
    log = io.StringIO()
    with served(log, max_body_bytes=100_000) as port:
        _, headers, _ = send(port, post(b"the prompt"))
        mine = send(port, post(b"the prompt", "X-Request-Id: mine-1"))[1]["x-request-id"]
        odd = send(port, post(b"the prompt", 'X-Request-Id: {} "<b>'))[1]["x-request-id"]
        send(port, post(b"x" * 200_000))
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert 'prompt"' not in log.getvalue() and "the prompt" not in log.getvalue()
    assert [one["status"] for one in lines] == [200, 200, 200, 413]
    assert mine == "mine-1" and odd != "mine-1" and headers["x-request-id"] == lines[0]["id"]
    first = lines[0]
    assert (first["event"], first["method"], first["route"]) == (
        "request",
        "POST",
        "/v1/completions",
    )
    assert first["prompt_tokens"] == 7 and 0 <= first["first_byte_ms"] <= first["duration_ms"]


def test_a_crash_is_one_line() -> None:
    log = io.StringIO()
    log_to(log)
    try:
        raise RuntimeError("two\nlines")
    except RuntimeError:
        logging.getLogger("dstune.server").exception("a request failed")
    finally:
        logging.getLogger("dstune").handlers = []
        logging.getLogger("uvicorn").handlers = []
    (line,) = log.getvalue().splitlines()
    assert "RuntimeError" in json.loads(line)["traceback"]


def admitted(bucket: AdaptiveBucket, rate: float, seconds: float, load: float, at: float) -> int:
    """How many of `rate` requests per second come in over so many seconds."""
    num = int(rate * seconds)
    return sum(bucket.take(at + index / rate, load) == 0 for index in range(num))


def test_the_bucket_follows_the_load() -> None:
    bucket = AdaptiveBucket(10, 0.0)
    assert [bucket.size(load) for load in (0, 0.5, 1, 7)] == [15, 12.5, 10, 10]
    assert [bucket.refill_per_s(load) for load in (0, 0.7, 0.71)] == [12, 12, 8]


@pytest.mark.parametrize(("load", "per_s"), [(0.0, 10.0), (0.7, 10.0), (0.71, 8.0), (1.0, 8.0)])
def test_the_rate_over_the_long_run(load: float, per_s: float) -> None:
    bucket = AdaptiveBucket(10, 0.0)
    assert admitted(bucket, 100, 600, load, 0.0) == pytest.approx(600 * per_s, rel=0.02)


def test_after_a_quiet_moment_it_is_faster_for_a_while() -> None:
    bucket = AdaptiveBucket(10, 0.0)
    admitted(bucket, 100, 60, 0.0, 0.0)
    assert admitted(bucket, 100, 20, 0.0, 80.0) == pytest.approx(15 + 20 * 12, abs=3)
    assert admitted(bucket, 100, 1, 1.0, 1000.0) == pytest.approx(10 + 8, abs=1)


def test_told_to_wait_a_request_passes_after_that_time() -> None:
    bucket = AdaptiveBucket(0.5, 0.0)
    assert bucket.take(0.0, 0.0) == 0
    wait_s = bucket.take(0.1, 0.0)
    assert wait_s > 0
    assert bucket.take(0.1 + wait_s - 0.01, 0.0) > 0
    assert bucket.take(0.1 + wait_s + 0.001, 0.0) == 0
