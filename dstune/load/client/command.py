"""Load client: how a load process is started; imports neither Locust nor gevent."""

from __future__ import annotations

import sys
from pathlib import Path

from dstune.errors import DstuneError

FD_OPTION = "--dstune-fd"
PROCESS_OPTION = "--dstune-process"
_PACKAGE = Path(__file__).parents[2]
_PLACES = (_PACKAGE / "loadtests", _PACKAGE.parent / "loadtests")  # installed, or a checkout


def locustfile_path(name: str) -> Path:
    """The Locust file `loadtests/<name>.py`; raises `DstuneError` when it is missing."""
    for place in _PLACES:
        path = place / f"{name}.py"
        if path.is_file():
            return path
    raise DstuneError(f"loadtests/{name}.py is missing: install dstune again")


def command(locustfile: Path, fd: int, process: int) -> list[str]:
    """The command line of a load process that is steered over the socket `fd`.

    The parent passes the descriptor on (`pass_fds`), and gives /dev/null as standard input and a
    log as standard output and error.
    """
    options = {
        "-f": str(locustfile),
        "--users": "1",
        "--spawn-rate": "1",
        "--loglevel": "WARNING",
        FD_OPTION: str(fd),
        PROCESS_OPTION: str(process),
    }
    flags = [part for pair in options.items() for part in pair]
    return [sys.executable, "-m", "locust", "--headless", "--only-summary", *flags]
