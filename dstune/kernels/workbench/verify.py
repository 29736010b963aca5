"""Proves kernels: every case through a backend and through the reference, on the same inputs."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from dstune.errors import UsageError
from dstune.kernels import interpreter
from dstune.kernels.device import gpu_of
from dstune.kernels.precision import KV_DTYPES, PRECISIONS
from dstune.kernels.select import Kernels, select
from dstune.kernels.workbench.case import Case, Inputs
from dstune.kernels.workbench.compare import Difference, compare
from dstune.kernels.workbench.poison import poisoned

Report = Callable[[str, int, int], None]
"""Progress: what, how many are done, how many are planned."""


@dataclass(frozen=True)
class Proof:
    """One case's result."""

    operation: str
    case: str
    difference: Difference
    elapsed_s: float

    @property
    def passes(self) -> bool:
        """Whether the backend computed what the reference does."""
        return self.difference.passes


@dataclass(frozen=True)
class Verification:
    """What a backend was proved to do, and what was not tried."""

    backend: str
    device: str
    proofs: tuple[Proof, ...]
    skipped: dict[str, int]  # reason -> cases
    elapsed_s: float

    @property
    def failed(self) -> list[Proof]:
        """The cases that it does wrong."""
        return [one for one in self.proofs if not one.passes]

    @property
    def passes(self) -> bool:
        """Whether something was proved and nothing failed."""
        return bool(self.proofs) and not self.failed


def device_at_hand() -> torch.device:
    """Return the CUDA device if there is one, else the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def prepare(backend: str) -> tuple[Kernels, Kernels, torch.device]:
    """Return a backend, the reference, and the device to prove it on.

    Switches the interpreter on where Triton has no CUDA device. Raises UsageError for a backend
    that there is nothing to prove of.
    """
    if backend not in ("triton", "cpu"):
        raise UsageError(f"--backend {backend!r}: choose triton or cpu")
    device = device_at_hand() if backend == "triton" else torch.device("cpu")
    if backend == "triton" and device.type == "cpu":
        interpreter.enable()
    return select(backend, device), select("reference", device), device


def verify(
    cases: Sequence[Case],
    kernels: Kernels,
    reference: Kernels,
    device: torch.device,
    report: Report,
) -> Verification:
    """Run every case that the backend can run on the device; a crash is that case's failure."""
    start = perf_counter()
    proofs = []
    skipped: dict[str, int] = {}
    for done, case in enumerate(cases):
        report("verify", done, len(cases))
        reason = why_not(case, kernels, device)
        if reason:
            skipped[reason] = skipped.get(reason, 0) + 1
            continue
        began = perf_counter()
        difference = prove(case, kernels, reference, device)
        proofs.append(Proof(case.operation, case.name, difference, perf_counter() - began))
    report("verify", len(cases), len(cases))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    elapsed_s = perf_counter() - start
    return Verification(kernels.backend, name, tuple(proofs), skipped, elapsed_s)


def why_not(case: Case, kernels: Kernels, device: torch.device) -> str:
    """Return why the backend cannot run a case on the device; empty if it can."""
    if kernels.backend == "triton":
        if device.type == "cpu" and case.dtype == torch.bfloat16:
            return "the interpreter's bf16 arithmetic is wrong"
        if case.needs_fp8 and not gpu_of(device).has_fp8:
            return "this GPU has no fp8"
        return ""
    if case.dtype == torch.float16 and "fp16" not in kernels.precisions:
        return f"backend {kernels.backend} has no fp16"
    if case.needs_fp8 and "fp8" not in kernels.precisions:
        return f"backend {kernels.backend} has no fp8"
    for part in case.name.split("-"):
        wanted = part if part in PRECISIONS else part.partition("_")[2] or part  # kv_fp16: fp16
        had = kernels.precisions if part in PRECISIONS else kernels.kv_dtypes
        if wanted in (*PRECISIONS, *KV_DTYPES) and wanted not in had:
            return f"backend {kernels.backend} has no {wanted}"
    return ""


def prove(case: Case, kernels: Kernels, reference: Kernels, device: torch.device) -> Difference:
    """Compare a backend with the reference; a crash is a difference with its reason."""
    try:
        expected = call_reference(case, reference, device)
        inputs = seeded(case, device)
        with poisoned():
            found = _call_by_name(case, kernels, inputs)
        return compare(found, expected, case.atol, case.rtol)
    except Exception as error:  # whatever one case does, the others are still to be proved
        first = str(error).strip().splitlines()
        return Difference(
            float("nan"), 0.0, f"{type(error).__name__}: {first[0] if first else ''}"[:300]
        )


def _call_by_name(case: Case, kernels: Kernels, inputs: Inputs) -> tuple[Tensor, ...]:
    """Call from code whose file is called like the case.

    A kernel that leaves its memory ends the process, and all that is left is faulthandler's list
    of files and lines: this puts the case's name into it.
    """
    names = {"case": case, "kernels": kernels, "inputs": inputs}
    exec(compile("found = case.call(kernels, inputs)", f"<case {case.id}>", "exec"), names)
    found: tuple[Tensor, ...] = names["found"]  # type: ignore[assignment]
    return found


def call_reference(case: Case, reference: Kernels, device: torch.device) -> tuple[Tensor, ...]:
    """Return what the reference makes of a case."""
    return case.call(reference, seeded(case, device))


def seeded(case: Case, device: torch.device) -> Inputs:
    """Make a case's inputs, the same at every call.

    They are made again, not copied: a call writes into them, and a cache so large that only the
    touched pages exist must not be copied whole.
    """
    torch.manual_seed(zlib.crc32(case.id.encode()))
    return case.make(device)
