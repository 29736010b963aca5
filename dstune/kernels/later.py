"""Which function serves which backend; Triton is imported when chosen: not everyone has it."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

Function = Callable[..., Any]


@dataclass(frozen=True)
class Later:
    """The function `name` of `module`, not imported yet."""

    module: str
    name: str

    def load(self) -> Function:
        """Import it."""
        function: Function = getattr(import_module(self.module), self.name)
        return function


def backends(reference: Function, cpu: Function) -> dict[str, Function | Later]:
    """Return an operation's table; Triton's function has the reference's name, in `triton.py`."""
    folder = reference.__module__.removesuffix(".reference")
    triton = Later(f"{folder}.triton", reference.__name__)
    return {"reference": reference, "cpu": cpu, "triton": triton}
