"""The child process that holds an engine for `target/embedded.py`: JSON lines in, JSON lines out.

Started as `python -m dstune.server`. Commands come on standard input and events go to what was
standard output; anything that a library prints goes to standard error, which is the log.
"""

from __future__ import annotations

import os
import sys

from dstune.server.steer import serve


def main() -> None:
    """Serves commands until told to quit or until the parent is gone."""
    events = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.stdin, events)


if __name__ == "__main__":
    main()
