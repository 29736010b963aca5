"""Times kernels on the device at hand, never without proof that they are right on those inputs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import torch

from dstune.kernels.select import Kernels, select
from dstune.kernels.workbench.case import Case, Cost
from dstune.kernels.workbench.compare import Difference
from dstune.kernels.workbench.timing import Ceilings, Timer, Times, measure_ceilings, timer_for
from dstune.kernels.workbench.verify import Report, device_at_hand, prove, seeded, why_not

# A bench has the size of a real model's layer. A CPU takes those that it moves and computes in
# about 10 ms and 100 ms; the reference, which must pass first, needs many times as much.
CPU_LIMIT = Cost(num_bytes=256 << 20, num_flops=20_000_000_000)
COPIES = 6  # of what a case reads, at most, in memory together: packed, and in the reference fp32


@dataclass(frozen=True)
class Timing:
    """One case's times and what they amount to; no times without proof."""

    operation: str
    case: str
    dtype: str
    proof: Difference
    cost: Cost | None
    ours: Times | None = None
    torchs: Times | None = None  # torch's own operation, in turns with ours
    copy_bytes_per_s: float = 0.0  # of the device, in this run
    matmul_flops_per_s: float = 0.0  # likewise, in the case's dtype
    error: str = ""  # why it was not timed although it was proved

    @property
    def bytes_per_s(self) -> float | None:
        """Achieved."""
        return self.cost.num_bytes / self.ours.median_s if self.cost and self.ours else None

    @property
    def flops_per_s(self) -> float | None:
        """Achieved."""
        return self.cost.num_flops / self.ours.median_s if self.cost and self.ours else None

    @property
    def copy_share(self) -> float | None:
        """Of the measured copy bandwidth."""
        reached = self.bytes_per_s
        return reached / self.copy_bytes_per_s if reached is not None else None

    @property
    def matmul_share(self) -> float | None:
        """Of the measured matmul rate in the case's dtype; int8 and fp8 may pass 1."""
        reached = self.flops_per_s
        return reached / self.matmul_flops_per_s if reached is not None else None

    @property
    def speedup(self) -> float | None:
        """How many times as fast as torch's own operation."""
        return self.torchs.median_s / self.ours.median_s if self.torchs and self.ours else None

    @property
    def failure(self) -> str:
        """Why there is no time; empty if there is one."""
        if not self.proof.passes:
            one = self.proof
            return one.problem or f"wrong: error {one.error:.3g} where {one.limit:.3g} is allowed"
        return self.error


@dataclass(frozen=True)
class Benchmark:
    """Every case's times."""

    backend: str
    device: str
    ceilings: Ceilings | None  # none where nothing was run
    timings: tuple[Timing, ...]
    skipped: dict[str, int]  # reason -> cases
    elapsed_s: float

    @property
    def failed(self) -> list[Timing]:
        """The cases that were not timed because they are wrong."""
        return [one for one in self.timings if one.failure]

    @property
    def passes(self) -> bool:
        """Whether something was timed and nothing failed."""
        return bool(self.timings) and not self.failed


def prepare() -> tuple[Kernels, Kernels, torch.device, Timer]:
    """Return what the device at hand runs best, the reference, the device, and its timer."""
    device = device_at_hand()
    kernels = select("auto", device)
    return kernels, select("reference", device), device, timer_for(device)


def bench(
    cases: Sequence[Case],
    kernels: Kernels,
    reference: Kernels,
    device: torch.device,
    timer: Timer,
    report: Report,
) -> Benchmark:
    """Prove and time every case that the backend can run on the device."""
    start = perf_counter()
    runnable = []
    skipped: dict[str, int] = {}
    for case in cases:
        reason = why_not(case, kernels, device) or too_large(case, device)
        if reason:
            skipped[reason] = skipped.get(reason, 0) + 1
        else:
            runnable.append(case)
    dtypes = list(dict.fromkeys(case.dtype for case in runnable))
    ceilings = measure_ceilings(device, timer, dtypes) if runnable else None
    timings = []
    for done, case in enumerate(runnable):
        report("bench", done, len(runnable))
        assert ceilings is not None
        timings.append(_time(case, kernels, reference, device, timer, ceilings))
        if device.type == "cuda":
            torch.cuda.empty_cache()  # the next case has tensors of other sizes
    report("bench", len(runnable), len(runnable))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    elapsed_s = perf_counter() - start
    return Benchmark(kernels.backend, name, ceilings, tuple(timings), skipped, elapsed_s)


def too_large(case: Case, device: torch.device) -> str:
    """Return why a case is not for this device; empty if it is."""
    if case.cost is None:
        return ""
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        return "too large for this GPU's memory" if COPIES * case.cost.num_bytes > memory else ""
    if case.cost.num_bytes > CPU_LIMIT.num_bytes or case.cost.num_flops > CPU_LIMIT.num_flops:
        limit = f"{CPU_LIMIT.num_bytes >> 20} MiB or {CPU_LIMIT.num_flops / 1e9:.0f} GFLOP"
        return f"too large for a CPU, more than {limit}"
    return ""


def _time(
    case: Case,
    kernels: Kernels,
    reference: Kernels,
    device: torch.device,
    timer: Timer,
    ceilings: Ceilings,
) -> Timing:
    dtype = str(case.dtype).removeprefix("torch.")
    proof = prove(case, kernels, reference, device)
    row = Timing(case.operation, case.name, dtype, proof, case.cost,
                 copy_bytes_per_s=ceilings.copy_bytes_per_s,
                 matmul_flops_per_s=ceilings.matmul_flops_per_s[dtype])  # fmt: skip
    if not proof.passes:
        return row
    inputs = seeded(case, device)
    calls = {"ours": lambda: case.call(kernels, inputs)}
    torch_call = case.torch_call
    if torch_call is not None:
        calls["torch"] = lambda: torch_call(inputs)
    try:
        times = timer.time(calls)
    except Exception as error:  # torch's operation may refuse what ours can do
        return replace(row, error=f"not timed: {type(error).__name__}: {error}"[:300])
    return replace(row, ours=times["ours"], torchs=times.get("torch"))
