"""Where a step's time goes, by operation, Python included.

    python tests/benchmarks/step_profile.py [--model F.gguf] [--precisions bf16,int8]

Every operation of the kernels is timed by wrapping it; what the wrapped ones do not explain is
Python (the model's and the scheduler's) and torch's own small operations. The wrapping itself
costs about a microsecond a call, which is in the last row.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.engine_runs import open_engine, run_batch
from models import smollm2

from dstune.engine import engine as engine_module
from dstune.engine.engine import Engine, StepOutput
from dstune.kernels.select import Kernels, select

spent_ns: Counter[str] = Counter()


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        start = time.perf_counter_ns()
        result = function(*args)
        spent_ns[name] += time.perf_counter_ns() - start
        return result

    return call


class TimedLayer:
    """A packed layer whose calls are timed; everything else is the layer's own."""

    def __init__(self, name: str, layer: Any) -> None:
        self._layer = layer
        self._call = timed(name, layer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)


def timed_kernels(backend: str, device: Any) -> Kernels:
    kernels = select(backend, device)
    operations = {
        one.name: timed(one.name, getattr(kernels, one.name))
        for one in fields(kernels)
        if callable(getattr(kernels, one.name)) and not one.name.startswith("pack_")
    }
    packers = {
        "pack_linear": lambda *args: TimedLayer("linear", kernels.pack_linear(*args)),
        "pack_experts": lambda *args: TimedLayer("experts", kernels.pack_experts(*args)),
    }
    return replace(kernels, **operations, **packers)


def shares(steps: list[StepOutput], counted: Counter[str]) -> list[tuple[str, float]]:
    total = sum(one.end_ns - one.start_ns for one in steps)
    rows = [(name, ns / total) for name, ns in counted.most_common()]
    return [*rows, ("Python and torch's own", 1 - sum(share for _, share in rows))]


def print_profile(engine: Engine, batch: int, precision: str) -> None:
    steps: dict[str, list[StepOutput]] = {"prefill": [], "decode": []}
    counted: dict[str, Counter[str]] = {kind: Counter() for kind in steps}

    def book(step: StepOutput) -> None:
        kind = "prefill" if step.num_prefill_tokens else "decode"
        steps[kind].append(step)
        counted[kind].update(spent_ns)
        spent_ns.clear()

    run_batch(engine, batch)  # warms up
    spent_ns.clear()
    run_batch(engine, batch, book)
    for kind, some in steps.items():
        each = sum(one.end_ns - one.start_ns for one in some) / len(some) / 1e6
        parts = [f"{name} {share:.0%}" for name, share in shares(some, counted[kind])
                 if share >= 0.005]  # fmt: skip
        print(f"| {precision} | {batch} | {kind} | {each:.2f} | {', '.join(parts)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=None, help="default: SmolLM2-135M")
    parser.add_argument("--precisions", default="bf16,int8")
    parser.add_argument("--batches", default="1,32")
    options = parser.parse_args()
    engine_module.select = timed_kernels
    print("| precision | batch | step | ms a step | by operation |\n|---|---|---|---|---|")
    for precision in options.precisions.split(","):
        engine = open_engine(options.model or str(smollm2()), precision)
        for batch in (int(one) for one in options.batches.split(",")):
            print_profile(engine, batch, precision)


if __name__ == "__main__":
    main()
