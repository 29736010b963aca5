"""Load client: connections to one server, opened when needed and kept between requests."""

from __future__ import annotations

import _socket
import errno
import ssl
from typing import Any
from urllib.parse import urlsplit

from dstune.load.client.alarms import Alarms
from dstune.load.client.connection import Connection, SlowConnection
from dstune.load.client.receiver import HAS_KERNEL_STAMPS, SO_TIMESTAMPNS, Receiver
from dstune.load.client.tls import Tls
from dstune.load.client.waiter import Waiter

_SLOW_BUFFER_BYTES = 4096
_READ, _WRITE = 1, 2  # libev's


class ConnectFailed(Exception):
    """No connection could be made; the message says why."""


class Pool:
    """Connections to the server of one URL. Nothing caps their number."""

    def __init__(self, url: str, receiver: Receiver, alarms: Alarms) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._is_tls = parts.scheme == "https"
        self._port = parts.port or (443 if self._is_tls else 80)
        self.netloc = parts.netloc.rpartition("@")[2]  # for the Host header
        self._alarms = alarms
        self._receiver = receiver
        self._context = ssl.create_default_context() if self._is_tls else None
        self._addresses: list[Any] = []
        self._idle: list[Connection] = []

    def resolve(self) -> None:
        """Looks the host up, so that no request waits for it; raises `ConnectFailed`."""
        try:
            found = _socket.getaddrinfo(self._host, self._port, 0, _socket.SOCK_STREAM)
        except OSError as error:
            raise ConnectFailed(f"{self._host}: {error.strerror or error}") from None
        self._addresses = [(family, address) for family, _, _, _, address in found]

    def take(self, waiter: Waiter) -> Connection:
        """The connection that was used last, or a new one; raises `ConnectFailed`."""
        return self._idle.pop() if self._idle else self.open(waiter)

    def give_back(self, connection: Connection) -> None:
        """Keeps a connection for the next request."""
        connection.idle(self._lost)
        self._idle.append(connection)

    def close(self) -> None:
        """Closes the connections that nobody uses."""
        while self._idle:
            self._idle.pop().close()

    def open(self, waiter: Waiter, *, is_slow: bool = False) -> Connection:
        """A new connection to the first address that answers; raises `ConnectFailed`."""
        if not self._addresses:
            self.resolve()
        reason = "no address"
        for position, (family, address) in enumerate(self._addresses):
            sock = _socket.socket(
                family, _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK | _socket.SOCK_CLOEXEC
            )
            try:
                tls = self._connect(sock, address, waiter, is_slow=is_slow)
            except OSError as error:  # an `ssl.SSLError` too
                sock.close()
                reason = str(error)
                continue
            except BaseException:
                sock.close()
                raise
            if position:  # the next one asks this address first
                self._addresses.insert(0, self._addresses.pop(position))
            if is_slow:
                return SlowConnection(sock, self._receiver, tls, self._alarms)
            return Connection(sock, self._receiver, tls)
        raise ConnectFailed(f"{self.netloc}: {reason}")

    def _connect(
        self, sock: _socket.socket, address: Any, waiter: Waiter, *, is_slow: bool
    ) -> Tls | None:
        sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        if is_slow:  # its stamps are the reader's, so none of the kernel's
            sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVBUF, _SLOW_BUFFER_BYTES)
        elif HAS_KERNEL_STAMPS:
            sock.setsockopt(_socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        code = sock.connect_ex(address)
        if code == errno.EINPROGRESS:
            _await(sock, _WRITE, waiter)
            code = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)
        if code:
            raise OSError(code, errno.errorcode.get(code, str(code)))
        if self._context is None:
            return None
        tls = Tls(sock, self._context, self._host)
        received = b""
        while True:
            is_done = tls.handshake(received)
            _flush(tls, sock, waiter)
            if is_done:
                return tls
            _await(sock, _READ, waiter)
            received = sock.recv(1 << 16)
            if not received:
                raise OSError(errno.ECONNRESET, "closed during the TLS handshake")

    def _lost(self, connection: Connection) -> None:
        """The peer ended an idle connection, or spoke out of turn."""
        self._idle.remove(connection)
        connection.close()


def _await(sock: _socket.socket, events: int, waiter: Waiter) -> None:
    while not waiter.ready(sock.fileno(), events):
        pass


def _flush(tls: Tls, sock: _socket.socket, waiter: Waiter) -> None:
    while True:
        try:
            tls.flush()
            return
        except BlockingIOError:
            _await(sock, _WRITE, waiter)
