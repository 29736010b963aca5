"""Gate: an earlier version beside the present one, checked out for as long as a gate takes."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dstune.errors import UsageError


@contextlib.contextmanager
def checked_out(repository: Path, revision: str) -> Iterator[Path]:
    """A worktree of `revision`; raises `UsageError` for a folder or revision that git lacks."""
    root = _git(repository, "rev-parse", "--show-toplevel")
    commit = _git(Path(root), "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    with tempfile.TemporaryDirectory(prefix="dstune-worktree-") as folder:
        place = Path(folder) / "checkout"
        _git(Path(root), "worktree", "add", "--detach", str(place), commit)
        try:
            yield place
        finally:
            # also when the folder was touched: it is ours, and git must forget it
            _git(Path(root), "worktree", "remove", "--force", str(place))


def has_revision(repository: Path, revision: str) -> bool:
    """Whether a folder's repository knows a revision."""
    with contextlib.suppress(UsageError):
        _git(repository, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
        return True
    return False


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True, text=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError as error:
        raise UsageError(f"git cannot be run: {error.strerror}") from None
    if done.returncode:
        asked = arguments[-1].removesuffix("^{commit}")
        said = done.stderr.strip().split("\n")[-1] or f"{folder} has no revision {asked}"
        raise UsageError(f"git: {said}")
    return done.stdout.strip()
