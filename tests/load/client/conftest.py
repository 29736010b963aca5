"""One scripted server and one load process per module: starting them is most of the time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from load_child import Child, scripted_server


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A scripted server's URL."""
    with scripted_server() as url:
        yield url


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """A load process; it must have lived until the end."""
    child = Child(tmp_path_factory.mktemp("client"))
    yield child
    child.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a test's own load processes leave their files."""
    return tmp_path
