"""Loads the built library and types its functions from their C declarations."""

import ctypes
import functools
import re
from types import SimpleNamespace
from typing import Any

from dstune.errors import UsageError
from dstune.kernels.native.build import build, sources

_DECLARATION = re.compile(r"\bDSTUNE_API(_SHORT)?\s+void\s+(\w+)\s*\(([^)]*)\)", re.DOTALL)
_TYPES = {"int64_t": ctypes.c_int64, "float": ctypes.c_float}
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
    for name, (is_short, argtypes) in _declarations().items():
        function = getattr(keeping if is_short else releasing, name)
        function.argtypes, function.restype = argtypes, None
        setattr(functions, name.removeprefix("dstune_"), function)
    return functions


@functools.cache
def _declarations() -> dict[str, tuple[bool, list[Any]]]:
    """Return {function: (keeps the GIL, argument types)} of every cpu.cpp."""
    found = {}
    for source in sources():
        for short, name, parameters in _DECLARATION.findall(source.read_text()):
            found[name] = (bool(short), [_argument_type(p) for p in parameters.split(",")])
    return found


def _argument_type(parameter: str) -> Any:
    """Return the ctypes type of one C parameter: any pointer, int64_t or float."""
    return ctypes.c_void_p if "*" in parameter else _TYPES[parameter.split()[0]]
