"""Every exception that dstune raises on purpose, and the exit code that each becomes.

    DstuneError                 5   dstune itself failed
    ├── UsageError              2   what was asked for cannot be done as written
    │   ├── ProfileError        2   a profile is wrong; names file, line and key
    │   ├── KnobError           2   a knob is unknown, out of bounds, or illegal beside another
    │   └── ModelError          2   a model is missing, corrupt, or of an unknown architecture
    ├── TargetError             5   what is under load failed to start, died, or stopped answering
    └── NotComparable           4   two results were not measured on the same thing

A leaf: every trunk may import it. A verdict (fail, inconclusive) is a result, not an exception.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of every verb."""

    PASS = 0
    FAIL = 1
    USAGE = 2
    INCONCLUSIVE = 3
    NOT_COMPARABLE = 4
    FAILED = 5
    INTERRUPTED = 130


class DstuneError(Exception):
    """An error with one clear line for the user; the message names the fix where there is one."""

    exit_code: ExitCode = ExitCode.FAILED


class UsageError(DstuneError):
    """What was asked for cannot be done as written."""

    exit_code = ExitCode.USAGE


class ProfileError(UsageError):
    """A profile is wrong; the message names file, line and key."""


class KnobError(UsageError):
    """A knob is unknown, out of bounds, or illegal beside another."""


class ModelError(UsageError):
    """A model is missing, corrupt, or of an unknown architecture."""


class TargetError(DstuneError):
    """What is under load failed to start, died, or stopped answering."""


class NotComparable(DstuneError):
    """Two results were not measured on the same thing."""

    exit_code = ExitCode.NOT_COMPARABLE


BY_NAME: dict[str, type[DstuneError]] = {
    error.__name__: error
    for error in (
        DstuneError,
        UsageError,
        ProfileError,
        KnobError,
        ModelError,
        TargetError,
        NotComparable,
    )
}
"""Errors by class name, so that one raised in a child process is raised again in its parent."""
