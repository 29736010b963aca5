"""The server under clients that break everything: it answers, stays alive, and frees all blocks."""

from __future__ import annotations

import copy
import json
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

import psutil
import pytest
from serving import MODEL, SMALL, Answer, Served, read_answer, serving, wait_for

MIB = 1 << 20
NUM_BODIES = 2000
GROWTH_BYTES = 24 * MIB  # a leak of 12 KiB per body would show; allocators keep some
FREE_S = 2.0  # blocks of a client that has gone are free within

LONG = {"model": MODEL, "prompt": [105] * 20, "max_tokens": 230, "ignore_eos": True}
STREAM = {**LONG, "stream": True, "stream_options": {"include_usage": True}}

BASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/completions", {"model": MODEL, "prompt": "import os", "max_tokens": 2, "seed": 1}),
    ("/v1/completions", {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 2, "stream": True,
                         "stream_options": {"include_usage": True}, "stop": ["a", "b"]}),
    ("/v1/completions", {"model": MODEL, "prompt": [[1], [2, 3]], "max_tokens": 1, "n": 2,
                         "temperature": 0.5, "top_p": 0.9, "logprobs": 2}),
    ("/v1/chat/completions", {"model": MODEL, "max_tokens": 2, "logprobs": True, "messages": [
        {"role": "system", "content": "a"}, {"role": "user", "content": "b"}]}),
    ("/v1/chat/completions", {"model": MODEL, "max_completion_tokens": 2, "stream": True,
                              "messages": [{"role": "user", "content": [
                                  {"type": "text", "text": "\u202e\u200b\U0001f600"}]}]}),
)  # fmt: skip
HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**30, 1e308, -0.0, 5e-324, 0.1,
    "", "\0", "\ud800", "\udfff\ud800", "\u202e", "\ufeff", "\U0001f600", "<|user|>", "x" * 3000,
    [], {}, [[]], [{}], [None], [True], [264], [-1], [1.5], {"": ""}, {"type": "text"},
    {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, [[[[[]]]]],
)  # fmt: skip
# without timeout_s: a client that asks for too little time rightly gets a 504
NAMES = (
    "prompt", "messages", "n", "stop", "seed", "tools", "logprobs", "echo", "stop_token_ids",
    "chat_template", "logit_bias", "best_of", "", "\0", "__proto__",
)  # fmt: skip


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside a document."""
    if isinstance(value, dict):
        keys: list[Any] = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    else:
        return []
    return [(value, key) for key in keys] + [one for key in keys for one in places(value[key])]


def mutated(draw: random.Random) -> tuple[str, bytes]:
    """A path and a body: a valid one with a value, a name or some bytes changed, or noise."""
    path, base = draw.choice(BASES)
    if draw.random() < 0.1:
        return path, draw.randbytes(draw.randrange(200))
    document = json.loads(json.dumps(base))
    for _ in range(draw.choice((0, 1, 1, 1, 2))):
        container, key = draw.choice(places(document))
        if draw.random() < 0.2 and isinstance(container, dict):
            container[draw.choice(NAMES)] = copy.deepcopy(draw.choice(HOSTILE))
        elif draw.random() < 0.1:
            del container[key]
            if not document:
                break
        else:
            container[key] = copy.deepcopy(draw.choice(HOSTILE))
    body = bytearray(json.dumps(document, ensure_ascii=True).encode())
    for _ in range(draw.choice((0, 0, 0, 1, 3))):
        at = draw.randrange(len(body))
        match draw.randrange(5):
            case 0:
                body[at] = draw.randrange(256)
            case 1:
                del body[at : at + draw.randrange(1, 9)]
            case 2:
                body[at:at] = draw.randbytes(draw.randrange(1, 5))
            case 3:
                body[at:at] = body[at : at + draw.randrange(1, 40)]
            case _:
                body[at:at] = draw.choice((b"NaN", b"Infinity", b"1e999", b"[" * 50, b"\\ud800"))
        body = body or bytearray(b"{")
    return path, bytes(body)


def fire(server: Served, bodies: list[tuple[str, bytes]]) -> Iterator[tuple[bytes, int, bytes]]:
    """Sends bodies on one kept connection: (body, status, answer)."""
    connection = HTTPConnection(*server.address, timeout=60)
    for path, body in bodies:
        connection.request("POST", path, body)
        answer = connection.getresponse()
        yield body, answer.status, answer.read()
    connection.close()


def is_sound(status: int, answer: bytes) -> bool:
    """A complete answer, or an error object with a client's status."""
    if status == 200:
        return b"error" not in answer[:9] and (b"[DONE]" in answer or b"usage" in answer)
    error = json.loads(answer)["error"]
    return 400 <= status < 500 and bool(error["message"]) and len(answer) < 2000


def fuzz(server: Served, seed: int, num: int) -> Counter[int]:
    """Statuses of so many mutated bodies, over four connections."""
    draw = random.Random(seed)
    bodies = [mutated(draw) for _ in range(num)]
    statuses: Counter[int] = Counter()
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda at: list(fire(server, bodies[at::4])), range(4)):
            for body, status, answer in found:
                assert is_sound(status, answer), (body[:500], status, answer[:500])
                statuses[status] += 1
    return statuses


def test_two_thousand_malformed_bodies(small_server: Served) -> None:
    fuzz(small_server, seed=1, num=300)  # warms up: allocators, caches, threads
    before = small_server.rss_bytes()
    statuses = fuzz(small_server, seed=2, num=NUM_BODIES)
    assert sum(statuses.values()) == NUM_BODIES
    # it must have met both the parser's refusals and the engine
    assert statuses[200] > 200 and statuses[400] > 1000
    assert wait_for(small_server.is_idle, FREE_S)
    assert small_server.rss_bytes() - before < GROWTH_BYTES
    assert small_server.post("/v1/completions", {**LONG, "max_tokens": 3}).status == 200


def hang_up(connection: socket.socket, *, is_reset: bool) -> None:
    if is_reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def test_twenty_clients_hang_up_in_every_stage(small_server: Served) -> None:
    """Eight run and eight wait; four more come when there is room. Half of each kind reset."""
    before = small_server.metrics().values["request_success_total"]
    for num in (16, 4):
        connections = [
            small_server.send("/v1/completions", LONG if index % 4 == 3 else STREAM)
            for index in range(num)
        ]
        assert connections[0].recv(1, socket.MSG_PEEK)
        assert small_server.metrics().values["kv_cache_usage_perc"] > 0
        for index, connection in enumerate(connections):
            hang_up(connection, is_reset=index % 2 == 0)
        assert wait_for(small_server.is_idle, FREE_S)
    ended = small_server.metrics().values["request_success_total"] - before
    assert ended == 20
    assert small_server.post("/v1/completions", {**LONG, "max_tokens": 3}).status == 200


def test_two_hundred_requests_at_twice_the_capacity(small_server: Served) -> None:
    body = {**LONG, "max_tokens": 12}

    def ask(index: int) -> Answer:
        streamed = {"stream": True} if index % 2 else {}
        return small_server.post("/v1/completions", {**body, **streamed})

    with ThreadPoolExecutor(32) as pool:  # 8 run and 8 wait
        answers = list(pool.map(ask, range(200)))
    statuses = Counter(one.status for one in answers)
    assert set(statuses) == {200, 503} and statuses[200] >= 16
    for index, one in enumerate(answers):
        if one.status == 503:
            assert int(one.headers["retry-after"]) >= 1
            assert one.json()["error"]["code"] == "queue_full"
        elif index % 2:
            assert one.events()[-1] == "[DONE]"
        else:
            assert one.json()["usage"]["completion_tokens"] == 12
    assert wait_for(small_server.is_idle, FREE_S)


def test_health_and_metrics_answer_while_the_queue_is_full(small_server: Served) -> None:
    waiting = [small_server.send("/v1/completions", STREAM) for _ in range(16)]

    def is_full() -> bool:
        values = small_server.metrics().values
        return values["num_requests_running"] == 8 and values["num_requests_waiting"] == 8

    assert wait_for(is_full, 5)
    began = time.monotonic()
    assert small_server.get("/health").status == 200
    assert small_server.post("/v1/completions", LONG).status == 503
    assert time.monotonic() - began < 1.0
    for connection in waiting:
        with connection:
            assert read_answer(connection).events()[-1] == "[DONE]"
    assert wait_for(small_server.is_idle, FREE_S)


def test_a_slow_reader_gets_everything_and_holds_nobody_up(small_server: Served) -> None:
    with small_server.send("/v1/completions", STREAM) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        assert small_server.post("/v1/completions", {**LONG, "max_tokens": 3}).status == 200
        assert wait_for(small_server.is_idle, 30)
        events = read_answer(slow).events()
    assert events[-1] == "[DONE]" and events[-2]["usage"]["completion_tokens"] == 230


def test_a_large_body_is_cut_and_a_broken_upload_forgotten(small_server: Served) -> None:
    answer = small_server.post("/v1/completions", b"x" * 3_000_000)
    assert answer.status == 413 and answer.json()["error"]["code"] == "body_too_large"
    for _ in range(10):
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{"
        with socket.create_connection(small_server.address) as broken:
            broken.sendall(head)
    assert small_server.post("/v1/completions", {**LONG, "max_tokens": 3}).status == 200
    assert wait_for(small_server.is_idle, FREE_S)


def test_an_over_long_text_does_not_stall_the_streams(small_server: Served) -> None:
    """Its tokens would take over a second, during which no other client got one."""
    text = {"model": MODEL, "prompt": "word " * 400_000, "max_tokens": 1}
    began = time.monotonic()
    answer = small_server.post("/v1/completions", text)
    assert time.monotonic() - began < 1.0
    assert answer.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("drain", ["0.3", "60"])
def test_sigterm_under_load_ends_every_stream_in_order(drain: str) -> None:
    with serving(*SMALL, "--drain", drain) as server:
        tree = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children()]
        streams = [server.send("/v1/completions", STREAM) for _ in range(12)]
        whole = server.send("/v1/completions", LONG)
        assert streams[0].recv(1, socket.MSG_PEEK)
        with ThreadPoolExecutor(14) as pool:
            reading = [pool.submit(read_answer, one) for one in (*streams, whole)]
            server.process.terminate()
            time.sleep(0.1)
            late = server.post("/v1/completions", LONG) if drain == "60" else None
            answers = [one.result() for one in reading]
        assert server.process.wait(30) == 0
        if late is not None:
            assert late.status == 503 and late.json()["error"]["code"] == "shutting_down"
        for one in answers[:-1]:
            check_end(one, is_complete=drain == "60")
        assert answers[-1].status == (200 if drain == "60" else 503)
        assert wait_for(lambda: not any(map(is_alive, tree)), 5)
        assert server.log_lines()[-1]["event"]
        for connection in (*streams, whole):
            connection.close()


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def check_end(answer: Answer, *, is_complete: bool) -> None:
    """A stream's end: all of it, or an error object; where it never began, a 503."""
    if answer.status == 503:
        assert not is_complete and answer.json()["error"]["code"] == "shutting_down"
        return
    *events, last = answer.events()
    assert answer.status == 200 and last == "[DONE]"
    if is_complete:
        assert events[-1]["usage"]["completion_tokens"] == 230
    else:
        assert events[-1]["error"]["code"] == "shutting_down"


def test_a_second_signal_ends_at_once() -> None:
    with serving(*SMALL, "--drain", "60") as server:
        stream = server.send("/v1/completions", STREAM)
        assert stream.recv(1)
        server.process.terminate()
        time.sleep(0.2)
        began = time.monotonic()
        server.process.terminate()
        assert server.process.wait(10) != 0
        assert time.monotonic() - began < 5
        stream.close()


def test_when_the_engine_dies_clients_are_told_and_the_server_ends() -> None:
    with serving(*SMALL) as server:
        stream = server.send("/v1/completions", STREAM)
        assert stream.recv(1, socket.MSG_PEEK)
        (engine,) = psutil.Process(server.process.pid).children()
        engine.kill()
        *_, error, last = read_answer(stream).events()
        stream.close()
        assert error["error"]["type"] == "server_error" and last == "[DONE]"
        assert server.process.wait(30) == 5
        assert "killed by signal 9" in server.log_text().splitlines()[-1]


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET / HTTP/9.9\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/models HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"x" * 200_000,
        b"GET / HTTP/1.1\r\n" + b"X-Y: " + b"z" * 200_000,
        b"GET / HTTP/1.1\r\n" + b"X-Y: z\r\n" * 50_000,
    ],
    ids=lambda data: repr(data[:40]) + f"+{len(data)}",
)
def test_what_is_no_http_ends_its_connection_alone(small_server: Served, data: bytes) -> None:
    with socket.create_connection(small_server.address, timeout=20) as connection:
        answer = b""
        try:
            connection.sendall(data)
            while part := connection.recv(65536):
                answer += part
        except ConnectionError:
            pass  # closed with bytes of ours unread
    if answer:
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.split()[1] == b"400"
        assert json.loads(body)["error"]["code"] == "invalid_http"
    assert small_server.post("/v1/completions", {**LONG, "max_tokens": 3}).status == 200
