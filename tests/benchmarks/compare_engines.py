"""dstune over HTTP beside other servers, and its engine beside llama.cpp: one machine, one run.

    python tests/benchmarks/compare_engines.py --server "vLLM W8A8=http://127.0.0.1:8101" \\
        --server "vLLM bf16=http://127.0.0.1:8102" --llama llama-batched-bench --pairs 3

SmolLM2-135M, prompt 128, output 64, closed loops of 1, 8 and 32. Servers are started by whoever
calls this and must hold the same model; dstune's are started here. Each round runs every system
once, in random order, with fresh prompts; ratios are taken within a round, to the first server.
Whole figures count prefill. llama.cpp's tool runs in its own process, the engine in this one.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.engine_runs import OUTPUT_TOKENS, PROMPT_TOKENS, Rates, engine_rates, open_engine
from models import smollm2

from dstune import knobs
from dstune.load.build import build_plan, build_warmup
from dstune.load.corpus import corpus_text
from dstune.profile.load import parse_profile
from dstune.profile.model import Profile
from dstune.stats.metrics import Loop, output_tokens_per_s
from dstune.target.embedded import EmbeddedTarget
from dstune.target.url import UrlTarget

BATCHES = (1, 8, 32)
ROUNDS_OF_LOOP = {1: 6, 8: 3, 32: 2}  # requests per stream of a closed loop
PRECISIONS = ("bf16", "int8")
PROFILE = """
name: compare
workload: {{prompt_tokens: {prompt}, output_tokens: {output}, num_requests: {num}}}
arrivals: {{kind: concurrency, concurrency: {concurrency}}}
"""
Measure = Callable[[int, int], float]
"""(concurrency, round) -> output tokens/s."""


def closed_loop(concurrency: int) -> Profile:
    num = concurrency * ROUNDS_OF_LOOP[concurrency]
    text = PROFILE.format(
        prompt=PROMPT_TOKENS, output=OUTPUT_TOKENS, num=num, concurrency=concurrency
    )
    return parse_profile("compare", text)


def over_http(target: EmbeddedTarget | UrlTarget) -> Measure:
    tokens = target.tokenize(corpus_text())
    target.run(build_warmup(closed_loop(8), tokens))

    def measure(concurrency: int, number: int) -> float:
        target.reset_caches()
        # a prompt that was asked before would come out of a prefix cache
        plan = build_plan(closed_loop(concurrency), number, tokens)
        samples = target.run(plan).samples
        assert all(one.output_tokens == OUTPUT_TOKENS for one in samples), samples
        rate = output_tokens_per_s(samples, Loop.CLOSED)
        assert rate is not None
        return rate

    return measure


def servers(stack: ExitStack, named: list[str], model: str) -> dict[str, Measure]:
    found: dict[str, Measure] = {}
    log = Path(stack.enter_context(tempfile.TemporaryDirectory()), "load.log")
    for one in named:
        name, url = one.split("=", 1)
        found[name] = over_http(stack.enter_context(UrlTarget(url, "auto", log, 1, None)))
    for precision in PRECISIONS:
        target = stack.enter_context(EmbeddedTarget(model, driver="http"))
        target.configure(knobs.complete({"precision": precision, "max_model_len": 256}))
        found[f"dstune {precision}"] = over_http(target)
    return found


def llama_rates(tool: str, model: str, batch: int) -> Rates:
    size = batch * (PROMPT_TOKENS + OUTPUT_TOKENS)
    command = [tool, "-m", model, "-npp", str(PROMPT_TOKENS), "-ntg", str(OUTPUT_TOKENS),
               "-npl", str(batch), "-c", str(size + 256), "-b", "2048", "-ub", "512", "-t", "2",
               "--output-format", "jsonl"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    row = next(json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    whole = batch * OUTPUT_TOKENS / row["t"]
    return Rates(whole, row["speed_tg"], row["speed_pp"])


def spread(values: list[float], form: str = ".0f") -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:{form}} ({low:{form}}-{high:{form}})"


def print_servers(found: dict[str, Measure], pairs: int) -> None:
    print("| concurrency | server | output tokens/s | ratio to the first |\n|---|---|---|---|")
    shuffled = random.Random(0)
    number = 0
    for batch in BATCHES:
        rates: dict[str, list[float]] = {name: [] for name in found}
        for pair in range(pairs + 1):
            for name in shuffled.sample(sorted(found), len(found)):
                number += 1
                rate = found[name](batch, number)
                if pair:  # the first warms up
                    rates[name].append(rate)
            print(f"concurrency {batch}: round {pair} of {pairs}", file=sys.stderr)
        first = rates[next(iter(found))]
        for name, values in rates.items():
            ratios = [one / base for one, base in zip(values, first, strict=True)]
            print(f"| {batch} | {name} | {spread(values)} | {spread(ratios, '.2f')} |", flush=True)


@dataclass(frozen=True)
class Contest:
    """Engines in process, by name."""

    systems: dict[str, Callable[[int], Rates]]


def engines(tool: str | None, model: str) -> Contest:
    systems: dict[str, Callable[[int], Rates]] = {}
    if tool is not None:
        systems["llama.cpp Q4_1"] = lambda batch: llama_rates(tool, model, batch)
    for precision in PRECISIONS:
        engine = open_engine(model, precision)
        systems[f"dstune {precision}"] = lambda batch, engine=engine: engine_rates(engine, batch)
    return Contest(systems)


def print_engines(contest: Contest, pairs: int) -> None:
    print("\n| batch | engine | whole, output tokens/s | decode alone | prefill tokens/s |")
    print("|---|---|---|---|---|")
    shuffled = random.Random(1)
    for batch in BATCHES:
        rates: dict[str, list[Rates]] = {name: [] for name in contest.systems}
        for pair in range(pairs + 1):
            for name in shuffled.sample(sorted(contest.systems), len(contest.systems)):
                measured = contest.systems[name](batch)
                if pair:
                    rates[name].append(measured)
            print(f"batch {batch}: round {pair} of {pairs}", file=sys.stderr)
        for name, values in rates.items():
            cells = [spread([getattr(one, field) for one in values])
                     for field in ("whole", "decode", "prefill")]  # fmt: skip
            print(f"| {batch} | {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--server", action="append", default=[], metavar="NAME=URL")
    parser.add_argument("--llama", help="path of llama-batched-bench")
    parser.add_argument("--model", type=Path, default=None, help="a GGUF; default: SmolLM2-135M")
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    model = str(options.model or smollm2())
    with ExitStack() as stack:
        print_servers(servers(stack, options.server, model), options.pairs)
    print_engines(engines(options.llama, model), options.pairs)


if __name__ == "__main__":
    main()
