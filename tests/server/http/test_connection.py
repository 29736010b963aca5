"""Clients that do not end a head, too large, too slow or never begun, and that do not read."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import Thread
from typing import Any

import pytest
import uvicorn

from dstune.server.http.connection import MAX_HEAD_BYTES, Connection

HEAD_S = 0.3
STALL_S = 0.5
LARGE = 8 << 20  # more than the sockets' buffers hold
REQUEST = b"GET / HTTP/1.1\r\nHost: t\r\n\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    body, num_parts = b"ok", 1
    match scope["path"]:
        case "/slow":
            await asyncio.sleep(3 * HEAD_S)
        case "/large":
            body, num_parts = b"x" * (1 << 16), LARGE >> 16
    length = (b"content-length", str(len(body) * num_parts).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    for left in range(num_parts, 0, -1):
        await send({"type": "http.response.body", "body": body, "more_body": left > 1})


@contextmanager
def listening() -> Iterator[int]:
    made = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app,
        http=partial(Connection, head_timeout_s=HEAD_S, stall_timeout_s=STALL_S),  # type: ignore[arg-type]
        lifespan="off",
        log_config=None,
        timeout_keep_alive=60,
    )
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, kwargs={"sockets": [made]})
    thread.start()
    yield made.getsockname()[1]
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with listening() as port:
        yield port


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def read_to_end(connection: socket.socket) -> bytes:
    found = b""
    try:
        while more := connection.recv(1 << 16):
            found += more
    except ConnectionResetError:
        pass
    return found


@pytest.mark.parametrize("begun", [b"", b"GET", REQUEST[:-2], b"\r\n"])
def test_a_head_that_does_not_end_in_time_ends_the_connection(port: int, begun: bytes) -> None:
    with connect(port) as connection:
        connection.sendall(begun)
        assert read_to_end(connection) == b""


def test_a_further_request_has_its_own_time(port: int) -> None:
    with connect(port) as connection:
        for _ in range(2):
            connection.sendall(REQUEST)
            assert connection.recv(1 << 16).endswith(b"ok")
        connection.sendall(REQUEST[:9])
        assert read_to_end(connection) == b""


def test_an_idle_connection_and_a_slow_answer_are_no_slow_head(port: int) -> None:
    with connect(port) as connection:
        for path in (b"/slow", b"/"):
            connection.sendall(REQUEST.replace(b"/", path, 1))
            assert connection.recv(1 << 16).endswith(b"ok")
            connection.settimeout(3 * HEAD_S)
            with pytest.raises(TimeoutError):
                connection.recv(1)  # it stays open
            connection.settimeout(20)


@pytest.mark.parametrize("line", [b"x" * 1000, b"X-A: " + b"b" * 90 + b"\r\n"], ids=["one", "many"])
def test_an_endless_head_is_cut(port: int, line: bytes) -> None:
    with connect(port) as connection:
        connection.sendall(REQUEST[:-2])
        sent = 0
        with pytest.raises(OSError):  # reset, or a broken pipe
            while sent < 1000 * MAX_HEAD_BYTES:
                sent += connection.send(line * 64)
        assert sent < 500 * MAX_HEAD_BYTES


def test_a_client_that_never_reads_is_cut_off(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(REQUEST.replace(b"/", b"/large", 1))
        time.sleep(4 * STALL_S)
        assert len(read_to_end(connection)) < LARGE


def test_a_client_that_reads_slowly_gets_everything(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(REQUEST.replace(b"/", b"/large", 1))
        found = 0
        while found < LARGE:
            more = len(connection.recv(1 << 18))
            assert more
            found += more
            time.sleep(0.01)
