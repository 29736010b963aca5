"""The real program in front of a fake target: `python program.py KILL_AT sweep ...`.

KILL_AT is `-`, or the number of the run of a load in which the process kills itself, as a
power cut would; `int:N` and `term:N` send that signal to themselves instead.
"""

from __future__ import annotations

import os
import signal
import sys

from fakes import TEXT, FakeClock, FakeTarget

import dstune.load.corpus
import dstune.measure.host
import dstune.target.open
from dstune.cli.main import main

when = sys.argv.pop(1)
name, _, number = when.rpartition(":")


def strike(run: int) -> None:
    if when != "-" and run == int(number):
        signals = {"": signal.SIGKILL, "int": signal.SIGINT, "term": signal.SIGTERM}
        os.kill(os.getpid(), signals[name])


def open_target(*_: object) -> FakeTarget:
    if when == "crash:":
        raise RuntimeError("this was not foreseen")
    return FakeTarget(FakeClock(), before_run=strike)


dstune.target.open.open_target = open_target
dstune.measure.host.read_cpu = FakeClock().read_cpu  # a host on which nobody else runs
dstune.load.corpus.corpus_text = lambda: TEXT
main()
