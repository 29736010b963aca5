"""Load client: TLS over memory, so that https is read with the same stamps as http."""

from __future__ import annotations

import _socket
import contextlib
import ssl
from typing import Any

_RECORD_BYTES = 16 << 10


class Tls:
    """One connection's TLS; the socket carries only what this makes and takes."""

    def __init__(self, sock: _socket.socket, context: ssl.SSLContext, host: str) -> None:
        self._sock = sock
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object: Any = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._pending = b""
        self._taken = 0

    def handshake(self, received: bytes) -> bool:
        """Goes on with the handshake, given what the peer sent; True when it is done.

        Raises `ssl.SSLError` when it failed.
        """
        if received:
            self._incoming.write(received)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self._pending += self._outgoing.read()
        return True

    def flush(self) -> None:
        """Sends what is pending; raises `BlockingIOError` when not all of it fits."""
        while self._pending:
            self._pending = self._pending[self._sock.send(self._pending) :]

    def send(self, data: memoryview) -> int:
        """As `Connection.send`: after a `BlockingIOError` it is called with the same data."""
        if not self._pending:
            self._taken = self._object.write(data[:_RECORD_BYTES])
            self._pending = self._outgoing.read()
        self.flush()
        return self._taken

    def received(self, data: bytes) -> bytes:
        """What `data` decrypts to, maybe nothing yet.

        Raises `ssl.SSLZeroReturnError` when the peer ended TLS in order and nothing is left,
        another `ssl.SSLError` when it is none.
        """
        self._incoming.write(data)
        plain = []
        try:
            while True:
                plain.append(self._object.read(_RECORD_BYTES))
                if not plain[-1]:
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            if not plain:
                raise
        self._pending += self._outgoing.read()  # an answer to a key update
        with contextlib.suppress(BlockingIOError):
            self.flush()
        return b"".join(plain)
