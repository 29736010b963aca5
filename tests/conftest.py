"""Fixtures that tests of every folder share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    # Triton's kernels run in its interpreter, which it chooses once, at its first import
    os.environ.setdefault("TRITON_INTERPRET", "1")

from models import Unavailable, smollm2


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct; without it tests are skipped, but fail in CI."""
    try:
        return smollm2()
    except Unavailable as reason:
        if os.environ.get("CI"):
            pytest.fail(str(reason))
        pytest.skip(str(reason))
