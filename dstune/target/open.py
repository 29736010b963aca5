"""The target that a profile names."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dstune.errors import UsageError
from dstune.profile.model import Profile
from dstune.target.embedded import EmbeddedTarget
from dstune.target.target import Target
from dstune.target.url import UrlTarget


@dataclass(frozen=True)
class Access:
    """How load reaches a target: over how many processes, with which key."""

    num_processes: int = 1
    api_key: str | None = None


def read_key(path: Path | None) -> str | None:
    """The key in a file, else that of OPENAI_API_KEY; raises `UsageError` for a bad file."""
    if path is None:
        return os.environ.get("OPENAI_API_KEY") or None
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as a key: {error}") from None
    if not key or not key.isascii() or any(char.isspace() for char in key):
        raise UsageError(f"{path} holds no key: one line of letters, digits and signs is wanted")
    return key


def check_target(target: str) -> None:
    """Raises `UsageError` for a target that a sweep cannot turn, before anything is started."""
    if target.startswith(("http://", "https://")):
        raise UsageError(
            f"a sweep cannot restart {target}; use target: embedded, or dstune loadtest for a URL"
        )
    _check_built(target)


def _check_built(target: str) -> None:
    if target not in ("embedded",) and not target.startswith(("http://", "https://")):
        raise UsageError(f"target '{target}' cannot be started yet; start it and give its URL")


def open_target(profile: Profile, log_path: Path, access: Access | None = None) -> Target:
    """Opens what a profile's `target`, `model` and `weights` name; logs go to `log_path`.

    Raises `UsageError` for a target that cannot be driven yet, `ModelError` for a bad model,
    `TargetError` for a server that does not answer.
    """
    access = access or Access()
    if profile.target.startswith(("http://", "https://")):
        return UrlTarget(profile.target, profile.model, log_path, access.num_processes,
                         access.api_key)  # fmt: skip
    _check_built(profile.target)
    return EmbeddedTarget(
        profile.model,
        weights=profile.weights,
        log_path=log_path,
        driver=profile.driver,
        num_processes=access.num_processes,
    )
