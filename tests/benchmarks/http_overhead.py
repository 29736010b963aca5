"""What HTTP costs: the same load on the same engine, over the server and in its own process.

    python tests/benchmarks/http_overhead.py [--models tiny-deepseek,F.gguf] [--pairs 10]

A closed loop of 32 requests of prompt 128 and output 64. Each pair runs both drivers once, in
random order, on the same engine, with the prefix cache reset. Over HTTP every token is streamed,
and the load client runs on the same cores: the ratio counts the server and the client together.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from models import smollm2

from dstune import knobs
from dstune.load.build import build_plan, build_warmup
from dstune.load.corpus import corpus_text
from dstune.load.plan import LoadPlan
from dstune.profile.load import parse_profile
from dstune.profile.model import Profile
from dstune.stats.metrics import Loop, output_tokens_per_s
from dstune.target.embedded import EmbeddedTarget

CONCURRENCY = 32
PROFILE = """
name: overhead
workload: {{prompt_tokens: 128, output_tokens: 64, num_requests: {num}}}
arrivals: {{kind: concurrency, concurrency: {concurrency}}}
"""


def load(num: int) -> Profile:
    return parse_profile("overhead", PROFILE.format(num=num, concurrency=CONCURRENCY))


def compare(model: str, precision: str, num: int, pairs: int) -> list[dict[str, float]]:
    """Output tokens/s of both drivers, pair by pair."""
    profile = load(num)
    values = knobs.complete({"precision": precision, "max_model_len": 256})
    found = []
    with EmbeddedTarget(model, driver="http") as target:
        # one engine, one memory: only the way to it differs
        drivers = {"http": target.run, "in process": target.run_offline}
        target.configure(values)
        tokens = target.tokenize(corpus_text())
        for run in drivers.values():
            run(build_warmup(profile, tokens))
        for pair in range(pairs):
            measured = {}
            for name in random.sample(sorted(drivers), 2):
                target.reset_caches()
                plan: LoadPlan = build_plan(profile, pair, tokens)
                samples = drivers[name](plan).samples
                assert all(one.output_tokens == 64 for one in samples)
                measured[name] = output_tokens_per_s(samples, Loop.CLOSED) or 0.0
            found.append(measured)
            print(f"  {model} {precision} pair {pair + 1} of {pairs}: "
                  + ", ".join(f"{name} {value:.0f}" for name, value in measured.items()),
                  file=sys.stderr)  # fmt: skip
    return found


def spread(values: list[float], form: str) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:{form}} ({low:{form}}-{high:{form}})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", default=f"tiny-deepseek,{smollm2()}")
    parser.add_argument("--pairs", type=int, default=10)
    arguments = parser.parse_args()
    print("| model | precision | in process, tokens/s | over HTTP, tokens/s | ratio |")
    print("|---|---|---|---|---|")
    for model in arguments.models.split(","):
        for precision in ("bf16", "int8"):
            num = 256 if model == "tiny-deepseek" else 32
            pairs = compare(model, precision, num, arguments.pairs)
            inside, served = ([one[name] for one in pairs] for name in ("in process", "http"))
            ratio = [one["http"] / one["in process"] for one in pairs]
            name = Path(model).stem
            print(f"| {name} | {precision} | {spread(inside, '.0f')} | {spread(served, '.0f')} "
                  f"| {spread(ratio, '.3f')} |")  # fmt: skip


if __name__ == "__main__":
    main()
