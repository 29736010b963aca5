"""Load: the bundled text that prompts are cut from, so that tokens are real ones.

It is the held-out evaluation text of the bundled model, read as package data: nothing of the
serving trunk is imported.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from dstune.errors import DstuneError, UsageError

_TEXT = ("model", "tiny_deepseek", "heldout.txt")


def corpus_text() -> str:
    """The bundled text; raises `DstuneError` when the installation lacks it."""
    try:
        return resources.files("dstune").joinpath(*_TEXT).read_text(encoding="utf-8")
    except FileNotFoundError:
        name = "/".join(("dstune", *_TEXT))
        raise DstuneError(f"the bundled text {name} is missing: install dstune again") from None


def read_text(path: Path) -> str:
    """A text file; raises `UsageError` when it cannot be read as UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as UTF-8 text: {error}") from None
