"""Builds one shared object from every operation's `cpu.cpp` with the system's g++.

A plain C interface and no torch headers: it compiles in seconds. The result is cached under
`$XDG_CACHE_HOME/dstune/native`, named by a hash of everything that it depends on.
"""

import hashlib
import os
import platform
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from dstune.errors import UsageError

_KERNELS = Path(__file__).parents[1]
_FLAGS = ("-std=c++17", "-O3", "-fopenmp", "-fPIC", "-fno-math-errno", "-fno-trapping-math",
          "-fvisibility=hidden", "-Wno-psabi", "-Wno-ignored-attributes")  # fmt: skip
_WAY_OUT = "or set backend: reference"


def sources() -> list[Path]:
    """Return every cpu.cpp, in a fixed order."""
    return sorted(_KERNELS.glob("*/cpu.cpp"))


def build(march: str = "native") -> Path:
    """Return the shared object for an instruction set (`-march`), compiling it if need be.

    Raises UsageError, naming the fix, when there is no compiler or it fails.
    """
    compiler = os.environ.get("CXX", "g++")
    openmp = openmp_library()
    target = cache_folder() / f"kernels-{_key(compiler, march, openmp)}.so"
    if not target.exists():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"native kernels cannot be kept in {target.parent} ({error.strerror}): "
                f"set XDG_CACHE_HOME to a folder that can be written, {_WAY_OUT}"
            ) from error
        # Built beside its final name and renamed: two processes may build at once, either wins.
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            built = _compile(compiler, march, openmp, Path(folder))
            built.replace(target)
    return target


def cache_folder() -> Path:
    """Return the folder that holds built libraries."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dstune" / "native"


def openmp_library() -> Path:
    """Return the OpenMP runtime that torch has loaded.

    Linking against another would give two thread pools that spin against each other.
    """
    torch.get_num_threads()  # makes sure that torch's libraries are in the map
    with open("/proc/self/maps") as maps:
        loaded = {line.split(maxsplit=5)[5].strip() for line in maps if "libgomp" in line}
    if not loaded:
        raise UsageError(f"torch has not loaded libgomp: use a Linux build of torch {_WAY_OUT}")
    return Path(min(loaded))


def _key(compiler: str, march: str, openmp: Path) -> str:
    digest = hashlib.sha256()
    version = _run([compiler, "--version"]).stdout
    parts = (version, *_FLAGS, march, str(openmp), platform.machine(), _cpu_flags())
    for part in parts:
        digest.update(part.encode() + b"\0")
    for source in sources() + sorted(_KERNELS.glob("*/*.h")):
        digest.update(source.read_bytes() + b"\0")
    return digest.hexdigest()[:20]


def _cpu_flags() -> str:
    """Return what this CPU can do; -march=native means something else on another one."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _compile(compiler: str, march: str, openmp: Path, folder: Path) -> Path:
    """Compile each source on its own thread, then link against torch's OpenMP by its path."""
    include = [f"-I{Path(__file__).parent}", f"-I{_KERNELS}"]
    objects = [folder / f"{source.parent.name}.o" for source in sources()]
    commands = [
        [compiler, *_FLAGS, f"-march={march}", *include, "-c", str(source), "-o", str(out)]
        for source, out in zip(sources(), objects, strict=True)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(_run, commands))
    # Without -fopenmp here, so that the compiler's own libgomp is not linked as well.
    library = folder / "kernels.so"
    _run([compiler, "-shared", *map(str, objects), str(openmp), "-o", str(library)])
    return library


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        result = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise UsageError(
            f"the cpu backend needs a C++ compiler ({command[0]}: {error.strerror}): "
            f"apt install g++, {_WAY_OUT}"
        ) from error
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if "error" in line] or ["no message"]
        raise UsageError(f"{command[0]} cannot build the native kernels: {lines[0]} ({_WAY_OUT})")
    return result
