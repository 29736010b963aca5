"""Report: what became of the kernels: proved, compiled, timed; as tables and as documents.

The records are those of `dstune.kernels.workbench`, taken by their fields: this part imports no
torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from dstune.report import words
from dstune.report.tables import Table
from dstune.report.terminal import as_rich, stdout


def print_verification(found: Any) -> None:
    """One row per operation, what was skipped and why, and what failed."""
    out = stdout()
    out.print(as_rich(verify_table(found.proofs)))
    _print_skipped(found.skipped)
    _print_failures((f"{one.operation}-{one.case}", _fault(one.difference)) for one in found.failed)
    num_right = len(found.proofs) - len(found.failed)
    _print_line(
        f"backend {found.backend} on {found.device}: {num_right} of {len(found.proofs)} cases "
        f"right in {words.duration(found.elapsed_s)}"
    )


def verify_table(proofs: Sequence[Any]) -> Table:
    """Cases, failures and the tightest pass of each operation."""
    head = ("operation", "cases", "failed", "worst error", "its limit", "in case", "seconds")
    rows = []
    for operation in dict.fromkeys(one.operation for one in proofs):
        mine = [one for one in proofs if one.operation == operation]
        worst = max(mine, key=lambda one: _closeness(one.difference))
        rows.append(
            (
                operation,
                str(len(mine)),
                str(sum(not one.passes for one in mine)),
                *_worst(worst.difference),
                worst.case,
                f"{sum(one.elapsed_s for one in mine):.1f}",
            )
        )
    return Table(head, tuple(rows))


def _worst(difference: Any) -> tuple[str, str]:
    if difference.problem:
        return "failed", words.ABSENT
    return words.number(difference.error), words.number(difference.limit)


def _closeness(difference: Any) -> float:
    """How close an error is to its limit; above 1 it fails."""
    if difference.problem or (difference.error and not difference.limit):
        return float("inf")
    return float(difference.error / difference.limit) if difference.limit else 0.0


def _fault(difference: Any) -> str:
    return str(difference.problem) or (
        f"error {difference.error:.3g} where {difference.limit:.3g} is allowed"
    )


def verify_document(found: Any) -> dict[str, Any]:
    """The same for scripts, case by case."""
    proofs = [
        {
            "operation": one.operation,
            "case": one.case,
            "passes": one.passes,
            "error": _finite(one.difference.error),
            "limit": one.difference.limit,
            "problem": one.difference.problem,
            "elapsed_s": one.elapsed_s,
        }
        for one in found.proofs
    ]
    return {
        "backend": found.backend,
        "device": found.device,
        "passes": found.passes,
        "num_failed": len(found.failed),
        "skipped": found.skipped,
        "elapsed_s": found.elapsed_s,
        "cases": proofs,
    }


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None  # JSON has no NaN


def print_compilation(found: Any) -> None:
    """One row per version of a kernel and GPU, what was skipped and why, and what failed."""
    order = sorted(found.compiled, key=lambda one: (one.kernel, one.cases))
    for arch in dict.fromkeys(one.arch for one in found.compiled):
        table = compile_table([one for one in order if one.arch == arch])
        stdout().print(as_rich(table, f"{arch} (wide loads: those of 16 bytes, of all)"))
    _print_skipped(found.skipped)
    _print_failures(
        (f"{one.kernel} on {one.arch} for {one.cases[0]}", one.failure) for one in found.failed
    )
    _print_line(
        f"{len(order)} versions, {len(found.failed)} failed, in {words.duration(found.elapsed_s)}"
    )


def compile_table(compiled: Sequence[Any]) -> Table:
    """Resources and instructions of every version."""
    head = ("kernel", "first case", "warps x stages", "regs", "shared bytes", "spills",
            "wide loads", "instructions", "")  # fmt: skip
    return Table(head, tuple(_compile_row(one) for one in compiled))


def _compile_row(one: Any) -> tuple[str, ...]:
    more = f" (+{len(one.cases) - 1})" if len(one.cases) > 1 else ""
    case = one.cases[0].partition("-")[2] or one.cases[0]  # the kernel tells the operation
    start = (one.kernel, f"{case}{more}")
    verdict = "FAIL" if one.failure else "ok"
    if one.anatomy is None:
        return (*start, *[words.ABSENT] * 6, verdict)
    anatomy = one.anatomy
    kinds = "".join(f" {name} {num}" for name, num in anatomy.kinds.items())
    return (
        *start,
        f"{one.num_warps} x {one.num_stages}",
        str(anatomy.num_registers),
        f"{one.shared_memory_bytes:,}",
        f"{anatomy.num_spill_stores}/{anatomy.num_spill_loads}",
        f"{anatomy.num_wide_loads}/{anatomy.num_loads}",
        f"{anatomy.num_instructions:,}{kinds}",
        verdict,
    )


def compile_document(found: Any) -> dict[str, Any]:
    """The same for scripts."""
    return {
        "passes": not found.failed,
        "num_failed": len(found.failed),
        "skipped": found.skipped,
        "elapsed_s": found.elapsed_s,
        "compiled": [{**asdict(one), "failure": one.failure} for one in found.compiled],
    }


def print_benchmark(found: Any) -> None:
    """What the device reaches, one row per case, what was skipped and why, and what failed."""
    if found.ceilings is not None:
        rates = ", ".join(
            f"matmul {dtype} {rate / 1e12:,.3g} TFLOP/s"
            for dtype, rate in found.ceilings.matmul_flops_per_s.items()
        )
        copy = found.ceilings.copy_bytes_per_s / 1e9
        _print_line(f"measured on {found.device}: copy {copy:,.0f} GB/s, {rates}")
    stdout().print(as_rich(bench_table(found.timings)))
    _print_skipped(found.skipped)
    _print_failures((f"{one.operation}-{one.case}", one.failure) for one in found.failed)
    _print_line(
        f"backend {found.backend} on {found.device}: {len(found.timings)} cases, "
        f"{len(found.failed)} not timed, in {words.duration(found.elapsed_s)}"
    )


def bench_table(timings: Sequence[Any]) -> Table:
    """Times, what they amount to, and torch's own operation beside them."""
    head = ("operation", "case", "median", "p10 to p90", "GB/s", "of copy", "GFLOP/s",
            "of matmul", "torch", "speedup")  # fmt: skip
    rows = []
    for one in timings:
        if one.ours is None:
            rows.append((one.operation, one.case, "not timed", *[words.ABSENT] * 7))
            continue
        rows.append(
            (
                one.operation,
                one.case,
                _time(one.ours),
                f"{_us(one.ours.low_s)} to {_us(one.ours.high_s)}",
                words.number(_scaled(one.bytes_per_s, 1e9)),
                _share(one.copy_share),
                words.number(_scaled(one.flops_per_s, 1e9)),
                _share(one.matmul_share),
                words.ABSENT if one.torchs is None else _time(one.torchs),
                words.ABSENT if one.speedup is None else f"{one.speedup:.2f}x",
            )
        )
    return Table(head, tuple(rows))


def _us(seconds: float) -> str:
    return words.number(seconds * 1e6)


def _time(times: Any) -> str:
    # under a CUDA graph the host's overhead is not in a time; what could not be captured says so
    return f"{_us(times.median_s)} us" + (" (no graph)" if times.how == "events" else "")


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _share(value: float | None) -> str:
    return words.ABSENT if value is None else f"{value:.0%}"


def bench_document(found: Any) -> dict[str, Any]:
    """The same for scripts."""
    derived = ("bytes_per_s", "flops_per_s", "copy_share", "matmul_share", "speedup", "failure")
    timings = []
    for one in found.timings:
        row = {**asdict(one), **{name: getattr(one, name) for name in derived}}
        row["proof"]["error"] = _finite(row["proof"]["error"])
        timings.append(row)
    return {
        "backend": found.backend,
        "device": found.device,
        "passes": found.passes,
        "ceilings": None if found.ceilings is None else asdict(found.ceilings),
        "skipped": found.skipped,
        "elapsed_s": found.elapsed_s,
        "cases": timings,
    }


def print_predictions(found: Any) -> None:
    """The least times on a GPU that nothing was run on."""
    stdout().print(as_rich(predict_table(found.rows)))
    _print_skipped(found.skipped)
    _print_line(
        f"predicted from the published rates of {found.gpu.name} "
        f"({found.gpu.bytes_per_s / 1e9:,.0f} GB/s); nothing was run"
    )


def predict_table(rows: Sequence[Any]) -> Table:
    """Bytes, FLOPs and the least time of every case."""
    head = ("operation", "case", "MB", "GFLOP", "moving", "computing", "at least", "bound by")
    return Table(
        head,
        tuple(
            (
                one.operation,
                one.case,
                words.number(one.cost.num_bytes / 1e6),
                words.number(one.cost.num_flops / 1e9),
                f"{_us(one.memory_s)} us",
                f"{_us(one.compute_s)} us",
                f"{_us(one.least_s)} us",
                one.bound,
            )
            for one in rows
        ),
    )


def predict_document(found: Any) -> dict[str, Any]:
    """The same for scripts."""
    rows = [{**asdict(one), "least_s": one.least_s, "bound": one.bound} for one in found.rows]
    return {"gpu": asdict(found.gpu), "was_run": False, "skipped": found.skipped, "cases": rows}


def print_tiles(written: Any) -> None:
    """The tiles that were found fastest, and where they were written."""
    table, path = written
    stdout().print(as_rich(tile_table(table)))
    _print_line(f"written to {path}")


def tile_table(table: Any) -> Table:
    """One row per number of tokens."""
    head = ("experts", "width", "device", "precision", "tokens", "tile m x n x k", "group",
            "warps", "stages")  # fmt: skip
    rows = []
    for key, tiles in table.entries.items():
        first = (str(key.num_experts), str(key.width), key.device, key.precision)
        for num_tokens, tile in sorted(tiles.items()):
            size = f"{tile.block_m} x {tile.block_n} x {tile.block_k}"
            rest = (tile.group_m, tile.num_warps, tile.num_stages)
            rows.append((*first, str(num_tokens), size, *map(str, rest)))
    return Table(head, tuple(rows))


def tune_document(written: Any) -> dict[str, Any]:
    """The same for scripts."""
    table, path = written
    entries = [
        {**asdict(key), "tiles": {str(num): asdict(tile) for num, tile in tiles.items()}}
        for key, tiles in table.entries.items()
    ]
    return {"path": str(path), "entries": entries}


def _print_skipped(skipped: Mapping[str, int]) -> None:
    for reason, number in skipped.items():
        _print_line(f"skipped {number} cases: {reason}")


def _print_failures(failures: Any) -> None:
    for name, reason in failures:
        stdout().print(Text(f"FAIL {name}: {reason}", style="bold red"), soft_wrap=True)


def _print_line(text: str) -> None:
    stdout().print(Text(text), soft_wrap=True)
