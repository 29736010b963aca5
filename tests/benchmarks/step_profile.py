"""Where a step's time goes, by operation, Python included.

    python tests/benchmarks/step_profile.py [--model F.gguf] [--precisions bf16,int8]

The engine's own tracing times every operation; what these do not explain is Python (the model's)
and torch's own small operations. The time that recording takes is left out.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.engine_runs import open_engine, run_batch
from models import smollm2

from dstune.engine.tracing.engine import TracedEngine
from dstune.engine.tracing.recorder import OPERATION_COLUMNS, STEP_COLUMNS


def print_profile(engine: TracedEngine, batch: int, precision: str) -> None:
    run_batch(engine, batch)  # warms up
    engine.take_trace()
    run_batch(engine, batch)
    taken = engine.take_trace()
    steps = [dict(zip(STEP_COLUMNS, row, strict=True)) for row in taken["steps"]]
    kinds = ["prefill" if one["num_prefill_tokens"] else "decode" for one in steps]
    spent_ns: dict[str, Counter[str]] = {"prefill": Counter(), "decode": Counter()}
    for values in taken["operations"]:
        row = dict(zip(OPERATION_COLUMNS, values, strict=True))
        name = taken["names"][row["operation"]][0].partition(".")[0]
        spent_ns[kinds[row["step"]]][name] += row["time_ns"]
    for kind, spent in spent_ns.items():
        durations = [one["duration_ns"] for one, its in zip(steps, kinds, strict=True)
                     if its == kind]  # fmt: skip
        total = sum(durations)
        rows = [(name, ns / total) for name, ns in spent.most_common()]
        rows.append(("Python and torch's own", 1 - spent.total() / total))
        parts = [f"{name} {share:.0%}" for name, share in rows if share >= 0.005]
        each = total / len(durations) / 1e6
        print(f"| {precision} | {batch} | {kind} | {each:.2f} | {', '.join(parts)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=None, help="default: SmolLM2-135M")
    parser.add_argument("--precisions", default="bf16,int8")
    parser.add_argument("--batches", default="1,32")
    options = parser.parse_args()
    print("| precision | batch | step | ms a step | by operation |\n|---|---|---|---|---|")
    for precision in options.precisions.split(","):
        engine = open_engine(options.model or str(smollm2()), precision, TracedEngine)
        for batch in (int(one) for one in options.batches.split(",")):
            print_profile(engine, batch, precision)


if __name__ == "__main__":
    main()
