"""How often a gate fails an engine that was slowed on purpose, on this very machine.

    python tests/benchmarks/gate_runs.py [--gates 10] [--slowdowns 0,0.1,0.25] [--loads 1]

Every gate is a whole one on the quickstart profile: real processes, real HTTP, looks at 5, 8 and 12
pairs. The candidate's engine spends that share of each step's time once more. Slowdowns take turns
in random order, so that a drift of the machine meets all of them. Gates that are done are kept in
--results, and are not repeated when the command is given again.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections import Counter
from pathlib import Path

from dstune.gate import gate
from dstune.gate.plan import GatePlan, GateSetting
from dstune.gate.sides import Side, Source, started_by
from dstune.knobs import complete
from dstune.load.corpus import corpus_text
from dstune.measure.fingerprint import fingerprint
from dstune.profile.load import load_profile
from dstune.report.gate import LiveGate

PROFILE = Path(__file__).parents[2] / "profiles" / "quickstart.yaml"


def one_gate(slowdown: float, seed: int, loads: int, root: Path) -> dict[str, object]:
    profile = load_profile(PROFILE)
    knobs = complete(profile.knobs)
    slowed = f"{sys.executable} -m dstune.server --slow step={slowdown}"
    source = started_by(slowed) if slowdown else Source()
    sides = Side("baseline", profile, knobs), Side("candidate", profile, knobs, source)
    environment = fingerprint()
    folder = gate.begin(*sides, root, sys.argv[1:], environment)
    plan = GatePlan(num_loads=loads, quality_windows=0, explains=False, seed=seed)
    with LiveGate() as live:
        setting = GateSetting(
            lambda side, traces: side.open(folder.log_path, None, traces), live, corpus_text,
            environment,
        )  # fmt: skip
        result = gate.carry_out(folder, *sides, plan, setting)
    return {
        "slowdown": slowdown,
        "claim": result.claim.value,
        "num_pairs": result.num_pairs,
        "num_repeated": result.num_repeated,
        "sd": {one.metric: one.sd for one in result.metrics},
        "change": {one.metric: one.change.value for one in result.metrics},
        "folder": folder.path.name,
    }


def print_table(done: list[dict[str, object]]) -> None:
    print("| slowdown | gates | fail | inconclusive | pass | pairs, mean |")
    print("|---|---|---|---|---|---|")
    for slowdown in sorted({one["slowdown"] for one in done}):  # type: ignore[type-var]
        mine = [one for one in done if one["slowdown"] == slowdown]
        claims = Counter(one["claim"] for one in mine)
        pairs = statistics.mean(int(str(one["num_pairs"])) for one in mine)
        print(f"| {slowdown:.0%} | {len(mine)} | {claims['fail']} | {claims['inconclusive']} | "
              f"{claims['pass']} | {pairs:.1f} |")  # fmt: skip
    print("\npair sd, median over all gates:")
    for metric in done[0]["sd"]:  # type: ignore[attr-defined]
        values = [one["sd"][metric] for one in done if metric in one["sd"]]  # type: ignore[index,operator]
        print(f"  {metric}: {statistics.median(values):.1%}")
    num_repeated = sum(int(str(one["num_repeated"])) for one in done)
    print(f"pairs measured again: {num_repeated}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gates", type=int, default=10)
    parser.add_argument("--slowdowns", default="0,0.1,0.25")
    parser.add_argument("--loads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path("reports/gate_runs.jsonl"))
    options = parser.parse_args()
    results = options.results
    done = (
        [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    )
    slowdowns = [float(one) for one in options.slowdowns.split(",")]
    for number in range(options.gates):
        turn = random.Random(number).sample(slowdowns, len(slowdowns))
        for slowdown in turn:
            if sum(one["slowdown"] == slowdown for one in done) > number:
                continue
            found = one_gate(slowdown, number, options.loads, results.parent)
            done.append(found)
            with results.open("a") as file:
                file.write(json.dumps(found) + "\n")
            print(f"{slowdown:.0%}: {found['claim']} after {found['num_pairs']} pairs", flush=True)
    print_table(done)


if __name__ == "__main__":
    main()
