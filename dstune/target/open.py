"""The target that a profile names."""

from __future__ import annotations

from pathlib import Path

from dstune.errors import UsageError
from dstune.target.embedded import EmbeddedTarget
from dstune.target.target import Target


def check_target(target: str) -> None:
    """Raises `UsageError` for a target that cannot be driven yet, before anything is started."""
    if target != "embedded":
        raise UsageError(f"target '{target}' cannot be driven by a sweep yet; use target: embedded")


def open_target(target: str, model: str, weights: str, log_path: Path) -> Target:
    """Opens what a profile's `target`, `model` and `weights` name; logs go to `log_path`.

    Raises `UsageError` for a target that cannot be driven yet, `ModelError` for a bad model.
    """
    check_target(target)
    return EmbeddedTarget(model, weights=weights, log_path=log_path)
