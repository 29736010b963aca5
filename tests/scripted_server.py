"""A scripted HTTP server: the truth that the load client is held against.

It runs in a process of its own, single-threaded over raw sockets so that it can misbehave, and
counts its timing from the kernel's stamp of the request, in absolute deadlines whose last stretch
it spins. Its own lateness is recorded. `python tests/scripted_server.py [--port P] [--core N]`
prints `listening PORT`, and with `--with-parent` ends when its standard input closes.

A request's body may hold `"script": {"mode", "ttft_ms", "itl_ms", "tokens"}`; without one the
command line's figures hold, with `max_tokens` tokens. Beside that:

GET /v1/models                   a list of one
POST /early                      refused before its body is read
POST /freeze {"after_ms", "ms"}  everything stops for a while
POST /lateness                   how late each write was, in ns; then forgotten
POST /connections                how many were accepted so far
POST /asked                      the bodies without a script; then forgotten
POST /written                    per request with an `id`: when it arrived, and between which two
                                 moments (monotonic ns) each step was written; then forgotten
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import select
import socket
import struct
import sys
import time
from array import array
from functools import lru_cache
from typing import Any

from scripted_answers import Answer, End, Script, answer

NS_PER_MS = 1_000_000
SO_TIMESTAMPNS = 35
SPIN_NS = 1_500_000  # epoll counts in whole ms, and a core that sleeps is lent to others
LINGER_RESET = struct.pack("ii", 1, 0)
make_answer = lru_cache(maxsize=512)(answer)


class Connection:
    """One client: what it has sent so far, and what it has still to get."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = bytearray()
        self.arrived_ns = 0
        self.waiting = bytearray()
        self.is_closed = False
        self.num_requests = 0
        self.record: list[list[int]] | None = None  # of the request in hand


class Server:
    """The loop: reads requests, and writes each step when it is due."""

    def __init__(self, port: int, default: Script) -> None:
        self._default = default
        self._listener = socket.create_server(("127.0.0.1", port), backlog=4096)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._connections: dict[int, Connection] = {}
        self._due: list[tuple[int, int, Any]] = []
        self._count = 0
        self._lateness: array[int] = array("q")
        self._asked: list[dict[str, Any]] = []  # what gave no script
        self._written: dict[str, list[list[int]]] = {}
        self._watches_parent = False
        self._num_accepted = 0

    def watch_parent(self) -> None:
        """Ends when standard input closes."""
        self._epoll.register(0, select.EPOLLIN)
        self._watches_parent = True

    def run(self) -> None:
        """Serves until killed, or until the parent is gone."""
        while True:
            wait_s = -1.0
            if self._due:
                left = self._due[0][0] - time.monotonic_ns()
                wait_s = max(0, (left - SPIN_NS) // NS_PER_MS) / 1000
            for fd, events in self._epoll.poll(wait_s, 64):
                if fd == self._listener.fileno():
                    self._accept()
                elif fd == 0 and self._watches_parent:
                    if not os.read(0, 4096):
                        return
                elif fd in self._connections:
                    self._serve(self._connections[fd], events)
            now = time.monotonic_ns()
            while self._due and self._due[0][0] <= now:
                due, _, (connection, work, index, base) = heapq.heappop(self._due)
                self._step(connection, work, index, base, due)
                now = time.monotonic_ns()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            self._num_accepted += 1
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            self._connections[sock.fileno()] = Connection(sock)
            self._epoll.register(sock, select.EPOLLIN)

    def _serve(self, connection: Connection, events: int) -> None:
        if events & select.EPOLLOUT:
            self._write(connection, b"")
        if not events & ~select.EPOLLOUT:
            return
        try:
            data, ancillary, _, _ = connection.sock.recvmsg(1 << 18, 64)
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        if not data:
            self._close(connection)
            return
        if not connection.received:
            connection.arrived_ns = _arrival_ns(ancillary)
        connection.received += data
        self._take_request(connection)

    def _take_request(self, connection: Connection) -> None:
        ended = connection.received.find(b"\r\n\r\n")
        if ended < 0:
            return
        first, *lines = bytes(connection.received[:ended]).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        if first.startswith("POST /early"):  # refuses by the headers, and reads no further
            self._write(connection, make_answer(Script("too_large")).steps[0][1])
            self._close(connection)
            return
        length = int(headers.get("content-length", 0))
        if len(connection.received) < ended + 4 + length:
            return
        body = bytes(connection.received[ended + 4 : ended + 4 + length])
        connection.received.clear()
        self._respond(connection, first.split(" ")[1], body)

    def _respond(self, connection: Connection, path: str, body: bytes) -> None:
        base = connection.arrived_ns
        connection.record = None
        if path == "/freeze":
            asked = json.loads(body)
            due = base + round(asked.get("after_ms", 0) * NS_PER_MS)
            self._push(due, None, asked["ms"], 0, base)
            self._reply(connection, {})
        elif path == "/lateness":
            self._reply(connection, self._lateness.tolist())
            self._lateness = array("q")
        elif path == "/connections":
            self._reply(connection, self._num_accepted)
        elif path == "/asked":
            self._reply(connection, self._asked)
            self._asked = []
        elif path == "/written":
            self._reply(connection, self._written)
            self._written = {}
        elif path == "/v1/models":
            self._reply(connection, {"object": "list", "data": [{"id": "scripted"}]})
        else:
            asked = json.loads(body) if body else {}
            if "script" not in asked:
                self._asked.append(asked)
            script = self._script(path, asked)
            connection.num_requests += 1
            if script.mode == "one_per_connection" and connection.num_requests > 1:
                self._close(connection)
                return
            work = make_answer(script)
            if "id" in asked:
                self._written[asked["id"]] = [[base, base]]
                connection.record = self._written[asked["id"]]
            self._push(base + work.steps[0][0], connection, work, 0, base)

    def _script(self, path: str, asked: dict[str, Any]) -> Script:
        given = asked.get("script", {})
        default = self._default
        return Script(
            mode=given.get("mode", default.mode),
            ttft_ms=given.get("ttft_ms", default.ttft_ms),
            itl_ms=given.get("itl_ms", default.itl_ms),
            tokens=given.get("tokens", asked.get("max_tokens", default.tokens)),
            is_chat=path.endswith("/chat/completions"),
            has_usage=asked.get("stream_options", {}).get("include_usage", False),
            has_token_ids=asked.get("return_token_ids", False),
        )

    def _push(self, due: int, connection: Any, work: Any, index: int, base: int) -> None:
        self._count += 1
        heapq.heappush(self._due, (due, self._count, (connection, work, index, base)))

    def _step(
        self, connection: Connection | None, work: Any, index: int, base: int, due: int
    ) -> None:
        if connection is None:
            self._freeze(work)
            return
        if connection.is_closed:
            return
        answer: Answer = work
        before = time.monotonic_ns()
        self._lateness.append(before - due)
        self._write(connection, answer.steps[index][1])
        if connection.record is not None:
            connection.record.append([before, time.monotonic_ns()])
        if index + 1 < len(answer.steps):
            self._push(base + answer.steps[index + 1][0], connection, answer, index + 1, base)
        elif answer.end is End.FOREVER:
            self._push(due + answer.repeat_ns, connection, answer, index, base)
        elif answer.end in (End.CLOSE, End.RESET):
            self._close(connection, is_reset=answer.end is End.RESET)

    def _freeze(self, ms: float) -> None:
        """Everything stands still, as a stopped engine: all that is due moves by as much."""
        time.sleep(ms / 1000)
        moved = round(ms * NS_PER_MS)
        self._due = [
            (due + moved, count, (connection, work, index, base + moved))
            for due, count, (connection, work, index, base) in self._due
        ]

    def _reply(self, connection: Connection, value: object) -> None:
        body = json.dumps(value).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        self._write(connection, head.encode() + b"\r\n\r\n" + body)

    def _write(self, connection: Connection, data: bytes) -> None:
        connection.waiting += data
        try:
            sent = connection.sock.send(connection.waiting)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._close(connection)
            return
        del connection.waiting[:sent]
        wanted = select.EPOLLIN | (select.EPOLLOUT if connection.waiting else 0)
        if connection.waiting or not data:
            self._epoll.modify(connection.sock, wanted)

    def _close(self, connection: Connection, *, is_reset: bool = False) -> None:
        if connection.is_closed:
            return
        connection.is_closed = True
        del self._connections[connection.sock.fileno()]
        if is_reset:
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
        connection.sock.close()


def _arrival_ns(ancillary: list[tuple[int, int, bytes]]) -> int:
    """The kernel's stamp of what was just read, on the monotonic clock."""
    now = time.monotonic_ns()
    if not ancillary:
        return now
    seconds, nanoseconds = struct.unpack("qq", ancillary[0][2])
    lag = time.time_ns() - (seconds * 1_000_000_000 + nanoseconds)
    return now - lag if 0 <= lag < 10_000_000_000 else now


def main() -> None:
    """Serves as the command line asks."""
    default = Script()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--core", type=int, help="pin to this CPU")
    parser.add_argument("--with-parent", action="store_true")
    parser.add_argument("--mode", default=default.mode)
    parser.add_argument("--ttft-ms", type=float, default=default.ttft_ms)
    parser.add_argument("--itl-ms", type=float, default=default.itl_ms)
    parser.add_argument("--tokens", type=int, default=default.tokens)
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    script = Script(options.mode, options.ttft_ms, options.itl_ms, options.tokens)
    server = Server(options.port, script)
    if options.with_parent:
        server.watch_parent()
    print(f"listening {server.port}")
    sys.stdout.flush()
    server.run()


if __name__ == "__main__":
    main()
