"""A function that is imported when its backend is chosen: not everyone has Triton."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Later:
    """The function `name` of `module`, not imported yet."""

    module: str
    name: str

    def load(self) -> Callable[..., Any]:
        """Import it."""
        function: Callable[..., Any] = getattr(import_module(self.module), self.name)
        return function
