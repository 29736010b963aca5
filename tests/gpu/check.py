"""Checks and times everything on a CUDA device, in one run of under five minutes.

    python tests/gpu/check.py [--json FILE]

Every kernel against its reference; the engine's greedy text against `transformers`, with CUDA
graphs and without; what each precision costs in perplexity; a traced load; every bench beside
torch's operation; and a model of DeepSeek-V2-Lite's shape with random weights at batch 1, 8, 32
and 64. It prints short tables, each goal with what was reached, and exits 1 when a check fails; a
missed goal of speed is shown, and is no failure.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from gpu.engine_run import Measured, graphs_beside_eager, run_shape
from gpu.equality import greedy_differences, precision_costs
from gpu.trace_run import decode_shares, faults, trace_summary

SHAPE = "deepseek-v2-lite"
BATCHES = (1, 8, 32, 64)
BENCH_BUDGET_S = 0.15  # of a case and system


@dataclass(frozen=True)
class Goal:
    """A figure that the project aims at."""

    what: str
    reached: float
    wanted: float

    @property
    def is_met(self) -> bool:
        """Whether it is reached."""
        return self.reached >= self.wanted


@dataclass
class Findings:
    """Everything that a run found; it is the JSON file too."""

    device: dict[str, Any]
    failures: list[str] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    verified: dict[str, int] = field(default_factory=dict)
    perplexity: list[dict[str, Any]] = field(default_factory=list)
    timings: list[dict[str, Any]] = field(default_factory=list)
    engine: list[Measured] = field(default_factory=list)
    decode_shares: dict[str, float] = field(default_factory=dict)  # by class of operations


def say(text: str = "") -> None:
    print(text, flush=True)


def quiet(what: str, done: int, planned: int) -> None:
    """Progress that nobody watches."""


def verify(findings: Findings) -> None:
    """Every kernel against its reference."""
    from dstune.kernels.workbench import catalogue
    from dstune.kernels.workbench.verify import prepare, verify

    kernels, reference, device = prepare("triton")
    found = verify(catalogue.checks(), kernels, reference, device, quiet)
    findings.verified = {"cases": len(found.proofs), "failed": len(found.failed), **found.skipped}
    findings.failures += [f"{one.operation}-{one.case}: {one.difference}" for one in found.failed]
    say(f"verify: {len(found.proofs)} cases, {len(found.failed)} failed, skipped {found.skipped}")


def equality(findings: Findings) -> None:
    """The engine's text against transformers, and graphs against single launches."""
    differences = greedy_differences(torch.device("cuda", 0), "triton")
    findings.failures += differences
    say(f"greedy text: {len(differences)} differences from transformers")
    findings.perplexity = precision_costs("triton")
    for row in findings.perplexity:
        say(f"  {row['precision']:>16} KV {row['kv_cache_dtype']:<5} {row['perplexity']:.4f}")


def bench(findings: Findings) -> None:
    """Every kernel beside torch's own operation, and the goals among them."""
    from dstune.kernels.workbench import catalogue
    from dstune.kernels.workbench.bench import bench, prepare
    from dstune.kernels.workbench.timing import CudaTimer

    kernels, reference, device, _ = prepare()
    cases = [one for one in catalogue.benches() if is_quick(one.id)]
    timer = CudaTimer(device, budget_s=BENCH_BUDGET_S)
    found = bench(cases, kernels, reference, device, timer, quiet)
    assert found.ceilings is not None
    say(f"copy {found.ceilings.copy_bytes_per_s / 1e9:.0f} GB/s, matmul "
        + ", ".join(f"{name} {rate / 1e12:.0f} TFLOP/s"
                    for name, rate in found.ceilings.matmul_flops_per_s.items()))  # fmt: skip
    for one in found.timings:
        row = {"case": f"{one.operation}-{one.case}", "failure": one.failure}
        if one.ours is not None:
            row |= {"us": one.ours.median_s * 1e6, "copy_share": one.copy_share,
                    "matmul_share": one.matmul_share, "speedup": one.speedup}  # fmt: skip
        findings.timings.append(row)
        say("  " + ", ".join(f"{key} {value:.3g}" if isinstance(value, float) else str(value)
                             for key, value in row.items() if value))  # fmt: skip
        if one.failure:
            findings.failures.append(f"bench {row['case']}: {one.failure}")
        else:
            findings.goals += kernel_goals(row)


def is_quick(name: str) -> bool:
    """Whether a bench belongs to the run of a few minutes.

    DeepSeek-V3's experts take tens of GB, and each size of a linear layer says the same.
    """
    return not ("-v3-" in name or "m32-" in name or "-n14336-" in name)


def kernel_goals(row: dict[str, Any]) -> list[Goal]:
    """What the project asks of a kernel of that name."""
    name, share, speedup = row["case"], row["copy_share"], row["speedup"]
    is_row_wise = name.startswith(("rms_norm", "add_rms_norm", "apply_rope", "silu_and_mul"))
    goals = []
    if "decode" in name and "32x1of" in name and "h128" not in name:
        goals.append(Goal(f"{name}: share of copy bandwidth", share, 0.80))
    if is_row_wise and "-4096x" in name:
        goals.append(Goal(f"{name}: share of copy bandwidth", share, 0.85))
    if "int8_weight_only-m1-" in name or "int8_weight_only-m8-" in name:
        goals.append(Goal(f"{name}: ratio to torch's bf16", speedup, 1.6))
    if name.startswith("pack_experts-bf16"):
        wanted = 2.0 if "beside_loop" in name else 1.0
        goals.append(Goal(f"{name}: ratio to torch's", speedup, wanted))
    return [goal for goal in goals if goal.reached is not None]  # torch may lack the operation


def engine(findings: Findings) -> None:
    """A real model's shape: tokens per second, and how near the weights' bandwidth it comes."""
    for measured in run_shape(SHAPE, BATCHES, torch.device("cuda", 0)):
        findings.engine.append(measured)
        say(f"  batch {measured.batch}: {measured.output_tokens_per_s:.0f} tokens/s, decode "
            f"{measured.decode_ms:.2f} ms a step, {measured.weight_share:.0%} of the bandwidth "
            "that reading the weights in use needs")  # fmt: skip
    first = findings.engine[0]
    findings.goals.append(Goal(f"{SHAPE} batch 1: share of bandwidth", first.weight_share, 0.60))
    ratio = graphs_beside_eager(torch.device("cuda", 0))
    findings.goals.append(Goal("decode with CUDA graphs, ratio to single launches", ratio, 1.0))


def trace(findings: Findings) -> None:
    """A traced load: every kernel finds its operation, and the gaps between them are seen."""
    found = trace_summary()
    findings.failures += faults(found)
    findings.decode_shares = {one.value: share for one, share in decode_shares(found).items()}
    say("decode step: " + ", ".join(f"{name} {share:.0%}"
                                    for name, share in findings.decode_shares.items()))  # fmt: skip
    say(f"launch gaps: {found.timeline.launch_gap_share:.0%} of the time")


def timed(findings: Findings, section: Callable[[Findings], None]) -> None:
    """Run a section; what breaks in it is a failure, and the other sections still run."""
    start = time.perf_counter()
    try:
        section(findings)
    except Exception as error:
        findings.failures.append(f"{section.__name__}: {type(error).__name__}: {error}"[:500])
    findings.seconds[section.__name__] = time.perf_counter() - start
    say(f"{section.__name__}: {findings.seconds[section.__name__]:.0f} s")


def run(sections: Sequence[Callable[[Findings], None]], json_path: Path | None) -> int:
    import triton

    properties = torch.cuda.get_device_properties(0)
    findings = Findings({
        "name": properties.name, "capability": f"{properties.major}.{properties.minor}",
        "torch": torch.__version__, "triton": triton.__version__,
    })  # fmt: skip
    say(str(findings.device))
    for section in sections:
        timed(findings, section)
        if json_path is not None:  # a run that is cut short keeps what it has
            json_path.write_text(json.dumps(asdict(findings), indent=1, default=str))
    for goal in findings.goals:
        say(f"{'met   ' if goal.is_met else 'MISSED'} {goal.what}: {goal.reached:.2f} "
            f"(goal {goal.wanted})")  # fmt: skip
    for failure in findings.failures:
        say(f"FAILED {failure}")
    return 1 if findings.failures else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("error: no CUDA device here; `dstune kernels verify` proves kernels on a CPU",
              file=sys.stderr)  # fmt: skip
        sys.exit(2)
    sys.exit(run((verify, equality, trace, bench, engine), options.json))


if __name__ == "__main__":
    main()
