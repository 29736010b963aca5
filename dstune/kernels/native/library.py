"""Loads the built library and packs the arguments of its functions as their C declarations say."""

import ctypes
import functools
import re
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from dstune.errors import UsageError
from dstune.kernels.native.build import build, sources

_DECLARATION = re.compile(r"^DSTUNE_API(_SHORT)?\((\w+),\s*\(([^)]*)\)\)", re.MULTILINE)
_TYPES = {"int64_t": "q", "float": "d"}  # formats of struct; a float travels as a double
_current: Any = None


def lib() -> Any:
    """Return the functions of the library in use, building it if nothing has done so yet."""
    global _current
    if _current is None:
        _current = load()
    return _current


def use(library: Any) -> None:
    """Make another build the library in use (tests of the lower instruction sets)."""
    global _current
    _current = library


@functools.cache
def load(march: str = "native") -> Any:
    """Build and load the library for an instruction set; its functions are the attributes.

    DSTUNE_API functions release the GIL. DSTUNE_API_SHORT ones run for microseconds and keep it:
    giving it up costs more than they do, and up to a switch interval (5 ms) when another thread
    is busy.
    """
    path = build(march)
    try:
        releasing, keeping = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
    except OSError as error:
        raise UsageError(
            f"the native kernels do not load ({error}); delete {path} or set backend: reference"
        ) from error
    functions = SimpleNamespace()
    for name, (is_short, layout) in _declarations().items():
        entry = getattr(keeping if is_short else releasing, f"dstune_{name}")
        setattr(functions, name, _function(entry, layout))
    return functions


def _function(entry: Any, layout: str) -> Callable[..., None]:
    """Return the Python function that packs its arguments into words and calls a C entry."""
    entry.argtypes, entry.restype = [ctypes.c_char_p], None
    pack = struct.Struct(layout).pack

    def call(*arguments: float) -> None:
        entry(pack(*arguments))

    return call


@functools.cache
def _declarations() -> dict[str, tuple[bool, str]]:
    """Return {function: (keeps the GIL, layout of its arguments)} of every cpu.cpp."""
    found = {}
    for source in sources():
        for short, name, parameters in _DECLARATION.findall(source.read_text()):
            layout = "=" + "".join(_format(parameter) for parameter in parameters.split(","))
            found[name] = (bool(short), layout)
    return found


def _format(parameter: str) -> str:
    """Return the format of one C parameter: any pointer, int64_t or float."""
    return "q" if "*" in parameter else _TYPES[parameter.split()[0]]
