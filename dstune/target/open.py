"""The target that a profile names."""

from __future__ import annotations

from pathlib import Path

from dstune.errors import UsageError
from dstune.target.embedded import EmbeddedTarget
from dstune.target.target import Target


def open_target(target: str, model: str, weights: str, log_path: Path) -> Target:
    """Opens what a profile's `target`, `model` and `weights` name; logs go to `log_path`.

    Raises `UsageError` for a target that cannot be driven yet, `ModelError` for a bad model.
    """
    if target == "embedded":
        return EmbeddedTarget(model, weights=weights, log_path=log_path)
    raise UsageError(f"target '{target}' cannot be driven by a sweep yet; use target: embedded")
