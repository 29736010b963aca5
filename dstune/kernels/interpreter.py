"""Triton's interpreter: runs the very kernels on a CPU, slowly, to prove them without a GPU."""

import os
import sys

from dstune.errors import UsageError

VARIABLE = "TRITON_INTERPRET"


def is_enabled() -> bool:
    """Return whether kernels that are imported from now on are interpreted."""
    return os.environ.get(VARIABLE) == "1"


def enable() -> None:
    """Switch it on for this process; raises UsageError when kernels are imported already."""
    if is_enabled():
        return
    if "triton" in sys.modules:
        raise UsageError(f"triton is imported already: set {VARIABLE}=1 before dstune starts")
    os.environ[VARIABLE] = "1"
