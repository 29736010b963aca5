"""One server for the tests that only need a small one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from serving import SMALL, Served, serving


@pytest.fixture(scope="package")
def small_server() -> Iterator[Served]:
    """Eight requests run and eight wait; a sequence has 256 tokens at most."""
    with serving(*SMALL) as server:
        yield server
