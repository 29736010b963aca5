"""An earlier version beside the present one, from a real repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dstune.errors import UsageError
from dstune.gate.sides import engine_of
from dstune.gate.worktree import checked_out, has_revision


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True,
                          capture_output=True, text=True)  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "inside").mkdir(parents=True)
    git(folder, "init", "-q")
    for version in ("one", "two"):
        (folder / "inside" / "version").write_text(version)
        git(folder, "add", ".")
        git(folder, "commit", "-qm", version)
    return folder


def test_an_earlier_revision_stands_beside_the_present_one_and_is_forgotten(
    repository: Path,
) -> None:
    with checked_out(repository / "inside", "HEAD~1") as place:
        assert (place / "inside" / "version").read_text() == "one"
        assert (repository / "inside" / "version").read_text() == "two"
        (place / "inside" / "left").write_text("by a build")
    assert not place.exists()
    assert git(repository, "worktree", "list").count("\n") == 0


def test_it_is_forgotten_after_an_interrupt_too(repository: Path) -> None:
    with pytest.raises(KeyboardInterrupt), checked_out(repository, "HEAD"):
        raise KeyboardInterrupt
    assert git(repository, "worktree", "list").count("\n") == 0


def test_what_git_lacks_is_a_usage_error(repository: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match=r"has no revision no-such$"),
        checked_out(repository, "no-such"),
    ):
        pass
    with pytest.raises(UsageError, match="not a git repository"), checked_out(tmp_path, "HEAD"):
        pass
    assert has_revision(repository, "HEAD~1")
    assert not has_revision(repository, "HEAD~7")


def test_a_revision_without_an_engine_is_refused(repository: Path) -> None:
    with checked_out(repository, "HEAD") as place, pytest.raises(UsageError, match="HEAD holds no"):
        engine_of(place, "HEAD")
