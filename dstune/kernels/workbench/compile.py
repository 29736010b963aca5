"""Compiles every kernel ahead of time, as the wrappers would launch it on a GPU that is not here.

Benches are called with tensors without storage, their launches are recorded and specialised, and
each distinct version is compiled and taken apart. What would not run well on the GPU is a failure:
registers that spill to memory, or more shared memory than a block may use, which Triton itself
notices only at the first launch.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from time import perf_counter, sleep
from typing import Any

import torch

from dstune.errors import UsageError
from dstune.kernels import interpreter
from dstune.kernels.device import TARGETS, Gpu
from dstune.kernels.launch import recording
from dstune.kernels.select import select
from dstune.kernels.workbench.case import Case
from dstune.kernels.workbench.sass import Anatomy, dissect
from dstune.kernels.workbench.specialise import ALIGNED, Specialised, specialise

Report = Callable[[str, int, int], None]
"""Progress: what, how many are done, how many are planned."""

META = torch.device("meta")

_Outcome = tuple[int, Anatomy] | str
"""Shared memory in bytes and what the kernel is made of, or why it does not compile."""


@dataclass(frozen=True)
class Version:
    """One version of a kernel for one GPU, and who launches it."""

    gpu: Gpu
    cases: tuple[str, ...]
    specialised: Specialised


@dataclass(frozen=True)
class Compiled:
    """What came of one version."""

    arch: str
    kernel: str
    cases: tuple[str, ...]
    num_warps: int
    num_stages: int
    constants: dict[str, str]  # tile sizes and what the runtime folds
    shared_memory_bytes: int | None = None
    shared_memory_limit_bytes: int | None = None
    anatomy: Anatomy | None = None
    error: str = ""  # of the compiler, or of the wrapper that should have launched it

    @property
    def failure(self) -> str:
        """Why this version is not good enough; empty if it is."""
        if self.anatomy is None or self.shared_memory_bytes is None:
            return self.error or "not compiled"
        reasons = []
        if self.anatomy.num_spill_stores or self.anatomy.num_spill_loads:
            reasons.append(
                f"spills: {self.anatomy.num_spill_stores} stores, "
                f"{self.anatomy.num_spill_loads} loads"
            )
        if self.shared_memory_bytes > (self.shared_memory_limit_bytes or 0):
            reasons.append(
                f"shared memory: {self.shared_memory_bytes:,} of "
                f"{self.shared_memory_limit_bytes:,} bytes"
            )
        return "; ".join(reasons)


@dataclass(frozen=True)
class Compilation:
    """Every version, and the cases that a GPU cannot run."""

    compiled: tuple[Compiled, ...]
    skipped: dict[str, int]  # reason -> cases
    elapsed_s: float

    @property
    def failed(self) -> list[Compiled]:
        """Those that are not good enough."""
        return [one for one in self.compiled if one.failure]


def gpus_named(names: Sequence[str]) -> list[Gpu]:
    """Return the GPUs called sm_80 and so on; raises UsageError for others."""
    for name in names:
        if name not in TARGETS:
            raise UsageError(f"architecture {name!r} is unknown; choose from {', '.join(TARGETS)}")
    return [TARGETS[name] for name in dict.fromkeys(names)]


def compile_cases(
    cases: Sequence[Case], gpus: Sequence[Gpu], num_workers: int, report: Report
) -> Compilation:
    """Compile what the cases launch on each GPU, in processes; num_workers 0: one per core.

    Raises UsageError when the interpreter has taken the compiler's place.
    """
    if interpreter.is_enabled():
        raise UsageError(
            f"{interpreter.VARIABLE} is set, so kernels are interpreted and cannot be compiled: "
            f"unset {interpreter.VARIABLE}"
        )
    _check_cache()
    start = perf_counter()
    versions: list[Version] = []
    broken: list[Compiled] = []
    skipped: dict[str, int] = {}
    for gpu in gpus:
        found, refused, num_skipped = _record(cases, gpu)
        versions += found
        broken += refused
        if num_skipped:
            skipped[f"{gpu.name} has no fp8"] = num_skipped
    if not versions and not broken:
        raise UsageError("none of these cases launches a Triton kernel; choose others with --only")
    results = [*broken, *_compile_all(versions, num_workers, report)]
    return Compilation(tuple(results), skipped, perf_counter() - start)


def _check_cache() -> None:
    """Raise UsageError where Triton could not keep what it compiles."""
    from triton import knobs

    folder = Path(knobs.cache.dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"Triton cannot keep what it compiles: {error}; set TRITON_CACHE_DIR to a folder that "
            "can be written"
        ) from None


def _record(cases: Sequence[Case], gpu: Gpu) -> tuple[list[Version], list[Compiled], int]:
    """Return the distinct versions that the cases launch, the cases that raise, the skipped."""
    launched: dict[Any, Version] = {}
    refused = []
    num_skipped = 0
    with recording(gpu):
        kernels = select("triton", META)
    for case in cases:
        if case.needs_fp8 and not gpu.has_fp8:
            num_skipped += 1
            continue
        try:
            with recording(gpu) as launches:
                case.call(kernels, case.make(META))
            made = [specialise(launch) for launch in launches]
        except Exception as error:
            reason = f"not launched: {type(error).__name__}: {error}"
            refused.append(Compiled(gpu.name, case.operation, (case.id,), 0, 0, {}, error=reason))
            continue
        for one in made:
            before = launched.get(one.key, Version(gpu, (), one))
            names = before.cases if case.id in before.cases else (*before.cases, case.id)
            launched[one.key] = replace(before, cases=names)
    return list(launched.values()), refused, num_skipped


def _compile_all(
    versions: Sequence[Version], num_workers: int, report: Report
) -> Iterator[Compiled]:
    num_workers = min(num_workers or os.cpu_count() or 1, len(versions))
    report("compile", 0, len(versions))
    outcomes = _outcomes(versions, num_workers) if num_workers > 1 else map(_here, versions)
    for done, (version, outcome) in enumerate(outcomes, start=1):
        report("compile", done, len(versions))
        yield _judge(version, outcome)


def _here(version: Version) -> tuple[Version, _Outcome]:
    return version, _compile(*_portable(version))


def _outcomes(versions: Sequence[Version], num_workers: int) -> Iterator[tuple[Version, _Outcome]]:
    """Compile in processes, in the order of completion.

    LLVM ends its process where it should raise, and takes the pool along: what was left is then
    compiled in a process each, so that the guilty version is named and the others are not lost.
    """
    left = dict(enumerate(versions))
    with _pool(num_workers) as pool:
        waiting = {pool.submit(_compile, *_portable(one)): number for number, one in left.items()}
        try:
            for future in as_completed(waiting):
                try:
                    outcome = future.result()
                except BrokenProcessPool:
                    break
                yield left.pop(waiting[future]), outcome
        finally:  # after Ctrl-C too: what has not begun never will
            pool.shutdown(wait=False, cancel_futures=True)
    for version in left.values():
        with _pool(1) as pool:
            try:
                outcome = pool.submit(_compile, *_portable(version)).result()
            except BrokenProcessPool:
                outcome = "the compiler crashed"
        yield version, outcome


def _pool(num_workers: int) -> ProcessPoolExecutor:
    parent = os.getpid()
    return ProcessPoolExecutor(
        num_workers, mp_context=get_context("spawn"), initializer=_end_with, initargs=(parent,)
    )


def _end_with(parent: int) -> None:
    """Watch the parent from a thread and end with it: a killed parent tells its workers nothing."""

    def watch() -> None:
        while os.getppid() == parent:
            sleep(0.5)
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def _portable(version: Version) -> tuple[Any, ...]:
    """Return the arguments of `_compile`; functions under triton.jit go by module and name."""
    one = version.specialised
    constants = {name: _by_name(value) for name, value in one.constants.items()}
    return (_by_name(one.kernel), dict(one.signature), constants, one.aligned,
            one.num_warps, one.num_stages, version.gpu.capability)  # fmt: skip


@dataclass(frozen=True)
class _Named:
    module: str
    name: str


def _by_name(value: Any) -> Any:
    is_kernel = hasattr(value, "arg_names") and hasattr(value, "__module__")
    return _Named(value.__module__, value.__name__) if is_kernel else value


def _found(value: Any) -> Any:
    return getattr(import_module(value.module), value.name) if isinstance(value, _Named) else value


def _compile(
    kernel: _Named,
    signature: dict[str, str],
    constants: dict[str, Any],
    aligned: tuple[str, ...],
    num_warps: int,
    num_stages: int,
    capability: int,
) -> _Outcome:
    """Return shared memory in bytes and the anatomy, or why it does not compile."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = list(signature)
    source = ASTSource(
        _found(kernel),
        signature,
        {name: _found(value) for name, value in constants.items()},
        {(names.index(name),): ALIGNED for name in aligned},
    )
    # fused multiply-add is the runtime's default up to Triton 3.9, which warns when it is not said
    options = {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": True}
    try:
        built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    except Exception as error:
        return f"does not compile: {type(error).__name__}: {_first_lines(str(error))}"
    return int(built.metadata.shared), dissect(built.asm["cubin"])


def _first_lines(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip(" ^")]
    return " | ".join(lines[-4:])[:400]  # Triton ends with the line at fault and the reason


def _judge(version: Version, outcome: _Outcome) -> Compiled:
    one = version.specialised
    base = Compiled(
        version.gpu.name, one.name, version.cases, one.num_warps, one.num_stages,
        {name: str(value) for name, value in one.constants.items()},
        shared_memory_limit_bytes=version.gpu.shared_memory_bytes,
    )  # fmt: skip
    if isinstance(outcome, str):
        return replace(base, error=outcome)
    return replace(base, shared_memory_bytes=outcome[0], anatomy=outcome[1])
