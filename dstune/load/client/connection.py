"""Load client: one connection, read with the kernel's receive stamps.

A callback receives, stamps and appends, and wakes nobody: no greenlet is switched to per token.
It asks for parsing only where the answer may have ended, where the caller must see each piece, or
where a backlog has built up. The sockets are the plain ones beneath gevent's, so that a receive
costs one call.
"""

from __future__ import annotations

import _socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable
from enum import Enum

from dstune.load.client.alarms import Alarms
from dstune.load.client.receiver import Receiver
from dstune.load.client.tls import Tls

RECEIVE_BYTES = 16 << 10
BACKLOG_PIECES = 64  # so much waits to be parsed; bounds memory of a stream that never ends
SLOW_READ_BYTES = 512
SLOW_PAUSE_NS = 25_000_000  # with the above about 20 kB/s: a stream of 100 tokens/s backs up
_ANCILLARY_BYTES = 32  # one timespec with its header
_TIMESPEC = struct.Struct("qq").unpack
_TINY_BYTES = 8  # a piece so small may be the torn end of a chunked body
_CLOCKS_NS = 100_000
_NS_PER_S = 1_000_000_000
_monotonic_ns = time.monotonic_ns
Piece = tuple[int, bytes]


class Ended(Enum):
    """How the peer ended the connection."""

    IN_ORDER = "fin"
    RESET = "reset"


class Connection:
    """A connection that is either idle or in the middle of one exchange.

    `pieces` are what was received since `begin`, with the monotonic time of each. `wake` is called
    from the hub when they should be parsed; it may not block.
    """

    __slots__ = (
        "_backlog",
        "_fd",
        "_last_ns",
        "_receive_bytes",
        "_receiver",
        "_recvmsg",
        "_sock",
        "_tls",
        "_wake",
        "ended",
        "is_closed",
        "num_uses",
        "pieces",
        "wake_at",
    )

    def __init__(self, sock: _socket.socket, receiver: Receiver, tls: Tls | None = None) -> None:
        self._sock = sock
        self._recvmsg = sock.recvmsg
        self._tls = tls
        self._fd = sock.fileno()
        self._receiver = receiver
        self._wake: Callable[[Connection], None] = _ignore
        self._backlog = 0
        self._last_ns = 0
        self._receive_bytes = RECEIVE_BYTES
        self.pieces: deque[Piece] = deque()
        self.ended: Ended | None = None
        self.is_closed = False
        self.num_uses = 0
        self.wake_at = 1

    def begin(self, wake: Callable[[Connection], None]) -> None:
        """A new exchange: whatever comes is its answer, and `wake` is called at the first piece."""
        self._wake = wake
        self.wake_at = 1
        self._backlog = 0
        self._last_ns = _monotonic_ns()
        if not self.num_uses:
            self._receiver.watch(self._fd, self._readable)
        self.num_uses += 1

    def idle(self, lost: Callable[[Connection], None]) -> None:
        """Between exchanges; `lost` is called when the peer ends the connection meanwhile."""
        self._wake = lost
        self.wake_at = 1
        self._backlog = 0

    def send(self, data: memoryview) -> int:
        """Sends what fits and returns how much; raises `BlockingIOError` or another `OSError`."""
        return self._sock.send(data) if self._tls is None else self._tls.send(data)

    def fileno(self) -> int:
        """The descriptor, for a watcher of one's own."""
        return self._fd

    def close(self) -> None:
        """Closes at once, whatever was still to come."""
        if not self.is_closed:
            self.is_closed = True
            self._wake = _ignore
            self._receiver.unwatch(self._fd)
            self._sock.close()

    def parsed(self) -> None:
        """All pieces have been taken."""
        self._backlog = 0

    def _readable(self) -> None:
        try:
            data, ancillary, _, _ = self._recvmsg(self._receive_bytes, _ANCILLARY_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._end(Ended.RESET)
            return
        if not data:
            self._end(Ended.IN_ORDER)
            return
        if ancillary:
            seconds, nanoseconds = _TIMESPEC(ancillary[0][2])
            stamp = seconds * _NS_PER_S + nanoseconds - self._receiver.wall_offset_ns
            if not self._last_ns <= stamp <= self._receiver.now_ns:
                stamp = self._plausible(stamp)
        else:
            stamp = _monotonic_ns()
        self._last_ns = stamp
        if self._tls is not None and not (data := self._decrypted(data)):
            return
        self.pieces.append((stamp, data))
        self._backlog += 1
        # every chunked body ends with an empty line; only events that end in CRLF look the same
        if (
            self._backlog >= self.wake_at
            or data.endswith(b"\r\n\r\n")
            or len(data) < _TINY_BYTES
            or b"[DONE]" in data
        ):
            self._wake(self)

    def _plausible(self, stamp_ns: int) -> int:
        """A stamp for what was received in the future or before the piece before it.

        A little of it is how well two clocks can be read at once, or came during the look; more,
        and the wall clock was set while it lay there.
        """
        now = _monotonic_ns()
        if self._last_ns <= stamp_ns <= now:
            return stamp_ns
        return self._last_ns if 0 < self._last_ns - stamp_ns < _CLOCKS_NS else now

    def _decrypted(self, data: bytes) -> bytes:
        assert self._tls is not None
        try:
            return self._tls.received(data)
        except ssl.SSLZeroReturnError:
            self._end(Ended.IN_ORDER)
        except ssl.SSLError:
            self._end(Ended.RESET)
        return b""

    def _end(self, ended: Ended) -> None:
        self.ended = ended
        self._receiver.unwatch(self._fd)
        self._wake(self)


class SlowConnection(Connection):
    """Reads a little at a time, with pauses; its stamps are when it reads."""

    __slots__ = ("_alarms",)

    def __init__(
        self, sock: _socket.socket, receiver: Receiver, tls: Tls | None, alarms: Alarms
    ) -> None:
        super().__init__(sock, receiver, tls)
        self._alarms = alarms
        self._receive_bytes = SLOW_READ_BYTES

    def _readable(self) -> None:
        super()._readable()
        if not self.is_closed and self.ended is None:
            self._receiver.unwatch(self._fd)
            self._alarms.at(_monotonic_ns() + SLOW_PAUSE_NS, self._resume)

    def _resume(self) -> None:
        if not self.is_closed:
            self._receiver.watch(self._fd, self._readable)


def _ignore(connection: Connection) -> None:
    pass
