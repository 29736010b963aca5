"""Who used the CPU: a server at a loopback URL is the target, not a neighbour."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from dstune.measure.host import host_load, is_loopback, read_cpu, reader_for

# leaves its parent, listens, and burns CPU in a child of its own, as a server with workers does
SERVER = """
import os, socket, sys
if os.fork():
    os._exit(0)
os.setsid()
listener = socket.create_server(("127.0.0.1", 0))
if os.fork():
    listener.listen()
    print(os.getpid(), listener.getsockname()[1], flush=True)
    os.wait()
else:
    listener.close()
    while True:
        pass
"""


@pytest.fixture
def server() -> Iterator[int]:
    """The port of a busy server that is no descendant of this process."""
    started = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    pid, port = map(int, started.stdout.readline().split())
    started.wait()
    started.stdout.close()
    yield port
    os.killpg(pid, signal.SIGKILL)


def test_a_server_at_a_loopback_url_is_no_neighbour(server: int) -> None:
    readers = {
        "beside": reader_for(f"http://127.0.0.1:{server}"),
        "unaware": reader_for("embedded"),
    }
    before = {name: read() for name, read in readers.items()}
    time.sleep(1.0)
    loads = {name: host_load(before[name], read()) for name, read in readers.items()}
    cores = os.cpu_count() or 1
    told_apart = loads["unaware"].foreign_cpu_share - loads["beside"].foreign_cpu_share
    assert told_apart > 0.2 / cores  # it burns up to 1 / cores, less where others run
    assert loads["beside"].own_cpu_share > 0.2 / cores


def test_where_nobody_listens_nobody_is_foreign() -> None:
    read = reader_for("http://localhost:9")
    before = read()
    deadline = time.monotonic() + 0.2
    while time.monotonic() < deadline:
        pass
    assert host_load(before, read()).foreign_cpu_share == 0.0


@pytest.mark.parametrize("target", ["embedded", "vllm", "http://10.1.2.3:8000", "http://host/v1"])
def test_other_targets_are_not_looked_for(target: str) -> None:
    assert reader_for(target) is read_cpu


def test_loopback_by_any_name() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.8.8.8", "::1")))
    assert not any(map(is_loopback, ("10.0.0.1", "example.org", "", "localhost.evil.org")))
