"""The process behind `target/embedded.py`: JSON lines in, JSON lines out.

`python -m dstune.server` holds an engine (`steer.py`). With `--http` it is the HTTP front, which
holds no engine but starts that process as its child (`http/steering.py`). Commands come on standard
input and events go to what was standard output; anything that a library prints goes to standard
error, which is the log.
"""

from __future__ import annotations

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
    if "--http" in arguments:
        from dstune.server.http.steering import serve_steered

        serve_steered(events)
        return
    if "--child" in arguments:
        # a Ctrl-C or a service manager's SIGTERM is the front's to handle: it drains first and
        # then closes the pipe, which ends this process
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # no pipe, or more than the system allows
        # a reader that is held up for a moment must not hold up the engine's steps
        fcntl.fcntl(events, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    # torch takes seconds to import, and the front does without it
    from dstune.server.steer import serve

    serve(sys.stdin.buffer, events)


if __name__ == "__main__":
    main(sys.argv[1:])
