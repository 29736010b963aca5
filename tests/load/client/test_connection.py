"""Receive stamps: the kernel's, and what becomes of them when the wall clock is set."""

from __future__ import annotations

import _socket
import time
from collections.abc import Iterator
from itertools import pairwise

import gevent
import pytest
from gevent.hub import get_hub

from dstune.load.client.connection import BACKLOG_PIECES, Connection, Ended
from dstune.load.client.receiver import SO_TIMESTAMPNS, EpollReceiver, LoopReceiver

MS = 1_000_000
Pair = tuple[Connection, _socket.socket, EpollReceiver]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A connection, the socket of its peer, and what watches it."""
    listener = _socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    ours = _socket.socket()
    ours.connect(listener.getsockname())
    fd, _ = listener._accept()
    theirs = _socket.socket(fileno=fd)
    theirs.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
    ours.setblocking(False)
    ours.setsockopt(_socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    receiver = EpollReceiver(get_hub().loop)
    gevent.sleep(0.1)  # until the kernel stamps
    connection = Connection(ours, receiver)
    yield connection, theirs, receiver
    connection.close()
    theirs.close()
    listener.close()
    receiver.close()


def ignore(connection: Connection) -> None:
    pass


def test_a_stamp_is_when_it_arrived_and_not_when_it_was_read(pair: Pair) -> None:
    connection, theirs, _ = pair
    connection.begin(ignore)
    sent = []
    for _ in range(5):
        before = time.monotonic_ns()
        theirs.send(b"x" * 100)
        sent.append((before, time.monotonic_ns()))
        time.sleep(0.03)  # the loop reads nothing meanwhile
        gevent.sleep(0.005)
    assert len(connection.pieces) == 5
    for (stamp, _), (before, _) in zip(connection.pieces, sent, strict=True):
        assert before - MS < stamp < before + 25 * MS


@pytest.mark.parametrize("step_ns", [3_600_000_000_000, -3_600_000_000_000])
def test_a_step_of_the_wall_clock_reaches_no_stamp(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, step_ns: int
) -> None:
    """The clock is set between the kernel's stamp and its reading."""
    connection, theirs, receiver = pair
    began = time.monotonic_ns()
    connection.begin(ignore)
    true = receiver._read_clocks

    def stepped() -> None:
        true()
        receiver.wall_offset_ns += step_ns

    theirs.send(b"x" * 100)
    gevent.sleep(0.01)
    monkeypatch.setattr(receiver, "_read_clocks", stepped)
    theirs.send(b"x" * 100)
    gevent.sleep(0.01)
    monkeypatch.undo()
    theirs.send(b"x" * 100)
    gevent.sleep(0.01)
    stamps = [stamp for stamp, _ in connection.pieces]
    assert len(stamps) == 3 and began <= stamps[0] and stamps[-1] <= time.monotonic_ns()
    assert all(after >= before for before, after in pairwise(stamps))


def test_many_wakes_are_spared_and_stamps_are_kept(pair: Pair) -> None:
    """While pieces come fast the receiver looks by time; what lies there keeps its own stamp."""
    connection, theirs, _ = pair
    connection.begin(ignore)
    connection.wake_at = BACKLOG_PIECES
    moments = []
    for _ in range(40):
        gevent.sleep(0.003)
        theirs.send(b"x" * 100)
        moments.append(time.monotonic_ns())
    gevent.sleep(0.02)
    assert len(connection.pieces) == 40
    stamped = zip(connection.pieces, moments, strict=True)
    late = sorted(moment - stamp for (stamp, _), moment in stamped)
    assert abs(late[20]) < MS // 2


def test_when_it_asks_to_be_parsed(pair: Pair) -> None:
    connection, theirs, _ = pair
    wakes: list[int] = []
    connection.begin(lambda one: wakes.append(len(one.pieces)))

    def send(data: bytes) -> int:
        before = len(wakes)
        theirs.send(data)
        gevent.sleep(0.01)
        return len(wakes) - before

    assert send(b"x" * 100) == 1  # the first piece
    connection.parsed()
    connection.wake_at = 3
    assert send(b"x" * 100) == 0
    assert send(b"x" * 100 + b"\r\n\r\n") == 1  # maybe the end
    assert send(b"\r\n") == 1  # maybe the torn end
    connection.parsed()
    assert send(b"data: [DONE]\n\n\r\n") == 1
    connection.parsed()
    assert [send(b"x" * 100) for _ in range(3)] == [0, 0, 1]  # a backlog
    theirs.close()
    gevent.sleep(0.01)
    assert connection.ended is Ended.IN_ORDER and len(wakes) == 6


def test_an_idle_connection_tells_when_it_is_lost(pair: Pair) -> None:
    connection, theirs, _ = pair
    connection.begin(ignore)
    lost: list[Connection] = []
    connection.idle(lost.append)
    gevent.sleep(0.005)
    assert not lost
    theirs.close()
    gevent.sleep(0.01)
    assert lost == [connection]


def test_the_receiver_of_other_systems_calls_back_too() -> None:
    left, right = _socket.socketpair()
    receiver = LoopReceiver(get_hub().loop)
    came: list[bytes] = []
    receiver.watch(left.fileno(), lambda: came.append(left.recv(10)))
    right.send(b"a")
    gevent.sleep(0.01)
    receiver.unwatch(left.fileno())
    right.send(b"b")
    gevent.sleep(0.01)
    receiver.close()
    assert came == [b"a"]
    left.close()
    right.close()
