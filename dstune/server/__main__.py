"""The process behind `target/embedded.py`: JSON lines in, JSON lines out.

`python -m dstune.server` holds an engine (`steer.py`). With `--http` it is the HTTP front, which
holds no engine but starts that process as its child (`http/steering.py`). Commands come on standard
input and events go to what was standard output; anything that a library prints goes to standard
error, which is the log. `--slow TARGET=SHARE`, for tests alone, plants a slowdown
(`engine/slowdown.py`); a wrong one is the answer to `open`.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import signal
import sys

PIPE_BYTES = 1 << 20  # some hundred steps of a full batch


def main(arguments: list[str]) -> None:
    """Serves commands until told to quit or until the parent is gone."""
    events = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    options = _parse(arguments)
    if options.http:
        from dstune.server.http.steering import serve_steered

        serve_steered(events, [] if options.slow is None else ["--slow", options.slow])
        return
    if options.child:
        # a Ctrl-C or a service manager's SIGTERM is the front's to handle: it drains first and
        # then closes the pipe, which ends this process
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # no pipe, or more than the system allows
        # a reader that is held up for a moment must not hold up the engine's steps
        fcntl.fcntl(events, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    # torch takes seconds to import, and the front does without it
    from dstune.server.steer import serve

    serve(sys.stdin.buffer, events, options.slow)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dstune.server", allow_abbrev=False)
    parser.add_argument("--http", action="store_true")
    parser.add_argument("--child", action="store_true")
    parser.add_argument("--slow", nargs="?", const="", metavar="TARGET=SHARE")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
