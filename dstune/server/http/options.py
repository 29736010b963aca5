"""How the HTTP server is set up: every default of it, in one place.

`dstune serve` takes its defaults from here; the front, the limits and the routes read them.
"""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass, field

from dstune.errors import UsageError

MIB = 1 << 20


@dataclass(frozen=True)
class ServerOptions:
    """Where the server listens and what it bounds; raises `UsageError` for what cannot be."""

    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free one
    api_key: str | None = field(default=None, repr=False)
    max_body_bytes: int = 2 * MIB
    body_timeout_s: float = 30.0  # for a request's whole body to arrive
    max_waiting: int = 256  # requests that wait for the engine; more are answered 503
    rate_limit_per_s: float | None = None  # None: no limit
    timeout_s: float = 600.0  # from a request's arrival to its last token
    drain_s: float = 20.0  # after SIGTERM, for what is under way
    keep_alive_s: float = 75.0  # an idle connection stays open

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UsageError(f"--port must be between 0 and 65535, not {self.port}")
        for name, low in _LOWEST.items():
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= low):
                flag = _FLAGS.get(name, name)
                raise UsageError(f"{flag} must be a number of at least {low:g}, not {value:g}")
        if self.api_key is not None:
            _check_key(self.api_key)
        elif not is_loopback(self.host):
            raise UsageError(
                f"--host {self.host} is reachable from other machines: give a key with "
                "--api-key-file FILE, or listen on 127.0.0.1"
            )


_LOWEST = {
    "max_body_bytes": 1024,
    "body_timeout_s": 0.1,
    "max_waiting": 0,
    "rate_limit_per_s": 0.01,
    "timeout_s": 0.1,
    "drain_s": 0,
    "keep_alive_s": 0,
}
_FLAGS = {
    "max_waiting": "--max-waiting",
    "rate_limit_per_s": "--rate-limit",
    "timeout_s": "--timeout",
    "drain_s": "--drain",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_key(key: str) -> None:
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(
            "the API key must be printable ASCII without spaces, as an HTTP header can carry it"
        )
