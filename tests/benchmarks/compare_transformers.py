"""dstune's engine beside `transformers` generate, same model, same prompts, one run.

    python tests/benchmarks/compare_transformers.py [--model F.gguf] [--pairs 5] [--batches 1,8]

Each pair runs every system once, in an order that is shuffled anew, so that a drift of the
machine hits all of them. Ratios are taken within a pair. Everything is counted: prefill too.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.engine_runs import OUTPUT_TOKENS, PROMPT_TOKENS, open_engine
from benchmarks.limits import operations_per_s, read_bytes_per_s
from models import smollm2

from dstune.engine.request import SamplingParams
from dstune.model.loading.open import open_checkpoint

BASELINE = "transformers bf16"


@dataclass(frozen=True)
class System:
    """Something that generates OUTPUT_TOKENS for each of a batch of prompts."""

    name: str
    generate: Callable[[list[list[int]]], None]
    precision: str
    weight_bytes: int  # read once per step


def dstune_system(model: str, precision: str) -> System:
    engine = open_engine(model, precision)

    def generate(prompts: list[list[int]]) -> None:
        for index, prompt in enumerate(prompts):
            params = SamplingParams(max_tokens=OUTPUT_TOKENS, ignore_eos=True)
            engine.add(str(index), tuple(prompt), params)
        while engine.has_requests:
            engine.step()

    embedding = engine.checkpoint.shape.vocab_size * engine.checkpoint.shape.hidden_size * 2
    return System(f"dstune {precision}", generate, precision, engine.num_weight_bytes - embedding)


def transformers_system(model: Path) -> System:
    from transformers import AutoModelForCausalLM

    module = AutoModelForCausalLM.from_pretrained(
        model.parent, gguf_file=model.name, dtype=torch.bfloat16
    ).eval()
    module.generation_config.eos_token_id = None

    @torch.inference_mode()
    def generate(prompts: list[list[int]]) -> None:
        ids = torch.tensor(prompts)
        out = module.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=OUTPUT_TOKENS,
            pad_token_id=0,
        )
        assert out.shape[1] == PROMPT_TOKENS + OUTPUT_TOKENS

    weights = sum(p.numel() * p.element_size() for p in module.parameters())
    return System(BASELINE, generate, "bf16", weights)


def bound_seconds(
    system: System, batch: int, bandwidth: float, operations: float, num_parameters: int
) -> float:
    """The least time: prefill at the arithmetic limit, each decode step at the tighter limit."""
    per_token = 2 * num_parameters
    prefill = batch * PROMPT_TOKENS * per_token / operations
    step = max(system.weight_bytes / bandwidth, batch * per_token / operations)
    return prefill + (OUTPUT_TOKENS - 1) * step


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, default=None, help="a GGUF; default: SmolLM2-135M")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--batches", default="1,8,32")
    options = parser.parse_args()
    model = options.model or smollm2()
    bandwidth = read_bytes_per_s()
    operations = {name: operations_per_s(name) for name in ("bf16", "int8")}
    systems = [
        transformers_system(model),
        dstune_system(str(model), "bf16"),
        dstune_system(str(model), "int8"),
    ]
    shape = open_checkpoint(str(model)).shape
    print(
        f"{model.name}: prompt {PROMPT_TOKENS}, output {OUTPUT_TOKENS}, prefill counted; "
        f"{torch.get_num_threads()} threads; limits measured now: "
        f"{bandwidth / 1e9:.1f} GB/s, bf16 {operations['bf16'] / 1e9:.0f} GFLOP/s, "
        f"int8 {operations['int8'] / 1e9:.0f} GOP/s; {options.pairs} pairs, median (min-max)\n"
    )
    print("| batch | system | output tokens/s | ratio to transformers | share of the limit |")
    print("|---|---|---|---|---|")
    shuffled = random.Random(0)
    for batch in (int(one) for one in options.batches.split(",")):
        seconds: dict[str, list[float]] = {system.name: [] for system in systems}
        for pair in range(options.pairs + 1):
            prompts = [
                [shuffled.randrange(20, shape.vocab_size) for _ in range(PROMPT_TOKENS)]
                for _ in range(batch)
            ]
            for system in shuffled.sample(systems, len(systems)):
                start = time.perf_counter()
                system.generate(prompts)
                if pair:  # the first warms up
                    seconds[system.name].append(time.perf_counter() - start)
            print(f"batch {batch}: pair {pair} of {options.pairs}", file=sys.stderr)
        for system in systems:
            times = seconds[system.name]
            rate = [batch * OUTPUT_TOKENS / one for one in times]
            ratios = [base / one for base, one in zip(seconds[BASELINE], times, strict=True)]
            least = bound_seconds(
                system, batch, bandwidth, operations[system.precision], shape.num_parameters()
            )
            share = least / statistics.median(times)
            print(
                f"| {batch} | {system.name} | {statistics.median(rate):.0f} "
                f"({min(rate):.0f}-{max(rate):.0f}) | {spread(ratios)} | {share:.0%} |"
            )


if __name__ == "__main__":
    main()
