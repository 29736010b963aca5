"""What each case must take on a GPU that is not here: its bytes and FLOPs at published rates."""

from collections.abc import Sequence
from dataclasses import dataclass

from dstune.errors import UsageError
from dstune.kernels.workbench.case import Case, Cost


@dataclass(frozen=True)
class Published:
    """A GPU's data sheet, dense rates."""

    name: str
    bytes_per_s: float
    flops_per_s: dict[str, float]  # by the type of the products


# NVIDIA A100 80GB SXM data sheet (2021): 2,039 GB/s; TF32 156, bf16 and fp16 312 TFLOPS, int8 624
# TOPS. NVIDIA H100 SXM data sheet (2023), its rates with sparsity halved: 3.35 TB/s; TF32 494.5,
# bf16 and fp16 989.4, int8 and fp8 1,978.9. NVIDIA H200 SXM data sheet (2024): 4.8 TB/s, the
# rates of the H100.
_A100 = {"float32": 156e12, "bfloat16": 312e12, "float16": 312e12, "int8": 624e12}
_H100 = {
    "float32": 494.5e12, "bfloat16": 989.4e12, "float16": 989.4e12, "int8": 1978.9e12,
    "fp8": 1978.9e12,
}  # fmt: skip
GPUS = {
    gpu.name: gpu
    for gpu in (
        Published("A100-80G", 2039e9, _A100),
        Published("H100-SXM", 3350e9, _H100),
        Published("H200", 4800e9, _H100),
    )
}


@dataclass(frozen=True)
class Prediction:
    """The least time of one case: the longer of moving its bytes and computing."""

    operation: str
    case: str
    cost: Cost
    memory_s: float
    compute_s: float

    @property
    def least_s(self) -> float:
        """Neither overlaps worse than perfectly."""
        return max(self.memory_s, self.compute_s)

    @property
    def bound(self) -> str:
        """What limits it."""
        return "memory" if self.memory_s >= self.compute_s else "compute"


@dataclass(frozen=True)
class Predictions:
    """The least times on one GPU."""

    gpu: Published
    rows: tuple[Prediction, ...]
    skipped: dict[str, int]  # reason -> cases


def predict(cases: Sequence[Case], gpu_name: str) -> Predictions:
    """Return the least time of every case on a GPU; h100 is name enough.

    Raises UsageError for a GPU without published rates.
    """
    wanted = gpu_name.lower()
    gpu = next((gpu for name, gpu in GPUS.items() if name.lower().startswith(wanted)), None)
    if gpu is None or len(wanted) < len("h100"):
        raise UsageError(f"no published rates of {gpu_name!r}; choose from {', '.join(GPUS)}")
    rows = []
    skipped: dict[str, int] = {}
    for case in cases:
        kind = product_type(case)
        rate = gpu.flops_per_s.get(kind)
        if case.cost is None or rate is None or (case.needs_fp8 and "fp8" not in gpu.flops_per_s):
            reason = "their cost is not stated" if case.cost is None else f"{gpu.name} has no fp8"
            skipped[reason] = skipped.get(reason, 0) + 1
            continue
        memory_s, compute_s = case.cost.num_bytes / gpu.bytes_per_s, case.cost.num_flops / rate
        rows.append(Prediction(case.operation, case.name, case.cost, memory_s, compute_s))
    return Predictions(gpu, tuple(rows), skipped)


def product_type(case: Case) -> str:
    """Return what the tensor cores multiply: int8 and fp8 linear layers, else the activations."""
    parts = case.name.split("-")
    if case.operation in ("pack_linear", "pack_experts"):
        if "int8" in parts:
            return "int8"
        if "fp8" in parts:
            return "fp8"
    return str(case.dtype).removeprefix("torch.")
