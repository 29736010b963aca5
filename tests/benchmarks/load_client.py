"""What the load client costs and how far off it is, against a server whose timing is known.

    python tests/benchmarks/load_client.py [--concurrency 64 256] [--ceiling] [--json FILE]

The scripted server (TTFT 50 ms, 10 ms per token, 64 tokens) runs on one core and each client, in
turn, on another; nothing else should run. Compared are dstune's client and Locust's FastHttpUser
and HttpUser, and any tool given as `--other 'NAME=COMMAND'`, whose command may use {url},
{concurrency}, {requests} and {out}: a file for JSON with the keys of `vllm bench serve`.

Printed are the errors of TTFT and ITL (what was reported less the script's truth), CPU per token
over the whole run, memory, with `--ceiling` the highest rate of tokens before the ITL's p99 is 20%
off, and always the rate of one-token requests. A run in which the server itself was late by more
than 0.5 ms at p99 is marked: its errors are not the client's.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from load_child import Child, ask, plan, request, scripted_server
from scripted_answers import Script

from dstune.measure.sample import Status

TRUTH = Script()
WAVES = 10  # requests per stream, of which the first is warm-up
CEILING_STEPS = (64, 128, 192, 256, 320, 384, 448, 512, 640, 768)
SERVER_LATE_MS = 0.5
TRIES = 3
USERS = Path(__file__).parent / "locust_users.py"


@dataclass
class Row:
    """One tool at one concurrency; times in ms, errors against the script."""

    tool: str
    concurrency: int
    ttft_error_p50: float
    ttft_error_p99: float
    itl_error_p50: float
    itl_error_p99: float
    cpu_us_per_token: float
    tokens_per_s: float
    rss_mb: float
    server_late_p99: float


@dataclass
class Measured:
    """What a tool reported of one run: per request when it was sent and when each token came."""

    rows: list[list[int]]
    cpu_s: float
    wall_s: float
    rss_mb: float


@dataclass(frozen=True)
class Bench:
    """Where server and clients run."""

    url: str
    client_core: int
    folder: Path

    def dstune(self, concurrency: int, count: int, script: dict[str, object]) -> Measured:
        """dstune's client."""
        child = Child(self.folder)
        os.sched_setaffinity(child.process.pid, {self.client_core})
        asked = [request(i, body=_body(script)) for i in range(count)]
        result = child.run(plan(self.url, asked, concurrency=concurrency))
        status = Path(f"/proc/{child.process.pid}/status").read_text()
        child.close()
        assert {one.status for one in result.samples} == {Status.OK}
        rows = [
            [one.intended_ns, *(one.sent_ns + offset for offset in one.chunk_offsets_ns)]
            for one in result.samples
            if one.sent_ns is not None
        ]
        rss_mb = int(status.split("VmHWM:")[1].split()[0]) / 1024
        return Measured(rows, result.health.cpu_s, result.health.wall_s, rss_mb)

    def locust(
        self, user: str, concurrency: int, count: int, script: dict[str, object]
    ) -> Measured:
        """One of Locust's own users."""
        out = self.folder / "locust.json"
        out.unlink(missing_ok=True)
        env = {
            "BENCH_BODY": _body(script).decode(),
            "BENCH_REQUESTS": str(count),
            "BENCH_RESULT": str(out),
        }
        users = str(concurrency)
        subprocess.run(
            [
                *("taskset", "-c", str(self.client_core), sys.executable, "-m", "locust"),
                *("-f", str(USERS), "--headless", "--only-summary", "--loglevel", "ERROR"),
                *("--host", self.url, "-u", users, "-r", users, user),
            ],
            env=os.environ | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        found = json.loads(out.read_text())
        return Measured(found["rows"], found["cpu_s"], found["wall_s"], found["rss_kb"] / 1024)


Tool = Callable[[int, int, dict[str, object]], Measured]


def _body(script: dict[str, object]) -> bytes:
    return json.dumps({"stream_options": {"include_usage": True}, "script": script}).encode()


def say(text: str) -> None:
    """Progress, apart from the results."""
    print(text, file=sys.stderr, flush=True)


def measure(name: str, tool: Tool, url: str, concurrency: int, waves: int = WAVES) -> Row:
    """One tool at one concurrency: of up to `TRIES`, the first at which the server was on time."""
    rows = []
    for _ in range(TRIES):
        rows.append(measure_once(name, tool, url, concurrency, waves))
        if rows[-1].server_late_p99 <= SERVER_LATE_MS:
            break
    return min(rows, key=lambda row: row.server_late_p99)


def measure_once(name: str, tool: Tool, url: str, concurrency: int, waves: int) -> Row:
    """One run."""
    ask(url, "/lateness", {})
    found = tool(concurrency, concurrency * waves, {})
    late_ms = np.array(ask(url, "/lateness", {})) / 1e6
    steady = sorted(found.rows)[concurrency:]
    ttft = np.array([(row[1] - row[0]) / 1e6 for row in steady]) - TRUTH.ttft_ms
    itl = np.array([(b - a) / 1e6 for row in steady for a, b in pairwise(row[1:])]) - TRUTH.itl_ms
    num_tokens = sum(len(row) - 1 for row in found.rows)
    assert num_tokens == concurrency * waves * TRUTH.tokens, f"{name} lost tokens"
    return Row(
        tool=name,
        concurrency=concurrency,
        ttft_error_p50=float(np.percentile(np.abs(ttft), 50)),
        ttft_error_p99=float(np.percentile(np.abs(ttft), 99)),
        itl_error_p50=float(np.percentile(np.abs(itl), 50)),
        itl_error_p99=float(np.percentile(np.abs(itl), 99)),
        cpu_us_per_token=found.cpu_s * 1e6 / num_tokens,
        tokens_per_s=num_tokens / found.wall_s,
        rss_mb=found.rss_mb,
        server_late_p99=float(np.percentile(late_ms, 99)),
    )


def requests_per_s(tool: Tool, count: int = 20_000) -> float:
    """One-token answers without a wait, 32 at once: what the client can do at most, or the server.

    The server answers far more than it is asked here by any client measured so far.
    """
    found = tool(32, count, {"ttft_ms": 0, "tokens": 1})
    ended = sorted(row[-1] for row in found.rows)
    tenth = len(ended) // 10
    return (len(ended) - 2 * tenth) / ((ended[-tenth - 1] - ended[tenth]) / 1e9)


def ceiling(name: str, tool: Tool, url: str) -> float:
    """The highest rate of tokens at which the reported ITL's p99 is within 20% of the truth."""
    best = 0.0
    for concurrency in CEILING_STEPS:
        row = measure(name, tool, url, concurrency, waves=4)
        say(f"  {name} at {concurrency}: ITL p99 off by {row.itl_error_p99:.2f} ms")
        if row.server_late_p99 > SERVER_LATE_MS:
            say(f"  the server itself is late there: {row.server_late_p99:.2f} ms at p99")
        if row.itl_error_p99 > 0.2 * TRUTH.itl_ms:
            break
        best = row.tokens_per_s
    return best


def other(spec: str, bench: Bench, concurrency: int) -> Row:
    """A tool of one's own, by its own report; CPU is that of its whole life, start included."""
    name, _, template = spec.partition("=")
    out = bench.folder / "other.json"
    out.unlink(missing_ok=True)
    count = concurrency * WAVES
    words = {"url": bench.url, "concurrency": concurrency, "requests": count, "out": out}
    line = ["taskset", "-c", str(bench.client_core), *shlex.split(template.format(**words))]
    ask(bench.url, "/lateness", {})
    process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{name} ended with status {process.returncode}")
    late_ms = np.array(ask(bench.url, "/lateness", {})) / 1e6
    if not len(late_ms) or not out.exists():
        raise SystemExit(f"{name} sent nothing to {{url}} or wrote nothing to {{out}}")
    found = json.loads(out.read_text())
    num_tokens = found["total_output_tokens"]
    return Row(
        tool=name,
        concurrency=concurrency,
        ttft_error_p50=abs(found["median_ttft_ms"] - TRUTH.ttft_ms),
        ttft_error_p99=abs(found["p99_ttft_ms"] - TRUTH.ttft_ms),
        itl_error_p50=abs(found["median_itl_ms"] - TRUTH.itl_ms),
        itl_error_p99=abs(found["p99_itl_ms"] - TRUTH.itl_ms),
        cpu_us_per_token=(used.ru_utime + used.ru_stime) * 1e6 / num_tokens,
        tokens_per_s=num_tokens / found["duration"],
        rss_mb=used.ru_maxrss / 1024,
        server_late_p99=float(np.percentile(late_ms, 99)),
    )


def table(rows: list[Row], ceilings: dict[str, float], rates: dict[str, float]) -> str:
    """The results as Markdown."""
    lines = [
        "| tool | C | TTFT error p50/p99 ms | ITL error p50/p99 ms | CPU us/token | tokens/s "
        "| memory MB | server late p99 ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        mark = " (!)" if row.server_late_p99 > SERVER_LATE_MS else ""
        lines.append(
            f"| {row.tool} | {row.concurrency} "
            f"| {row.ttft_error_p50:.3f}/{row.ttft_error_p99:.3f} "
            f"| {row.itl_error_p50:.3f}/{row.itl_error_p99:.3f} | {row.cpu_us_per_token:.1f} "
            f"| {row.tokens_per_s:.0f} | {row.rss_mb:.0f} | {row.server_late_p99:.2f}{mark} |"
        )
    lines += [
        "",
        "| tool | one-token requests/s | tokens/s before ITL p99 is 20% off |",
        "|---|---|---|",
    ]
    for name, rate in rates.items():
        most = f"{ceilings[name]:.0f}" if name in ceilings else "not measured"
        lines.append(f"| {name} | {rate:.0f} | {most} |")
    return "\n".join(lines)


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--tools", nargs="+", default=["dstune", "FastHttpUser", "HttpUser"])
    parser.add_argument("--other", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--ceiling", action="store_true")
    parser.add_argument("--client-core", type=int, default=0)
    parser.add_argument("--server-core", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        scripted_server("--core", str(options.server_core)) as url,
    ):
        bench = Bench(url, options.client_core, Path(folder))
        every: dict[str, Tool] = {
            "dstune": bench.dstune,
            "FastHttpUser": lambda c, n, script: bench.locust("Fast", c, n, script),
            "HttpUser": lambda c, n, script: bench.locust("Plain", c, n, script),
        }
        tools = {name: every[name] for name in options.tools}
        rows = []
        for concurrency in options.concurrency:
            for name, tool in tools.items():
                say(f"{name} at {concurrency}")
                rows.append(measure(name, tool, url, concurrency))
            for spec in options.other:
                say(f"{spec.partition('=')[0]} at {concurrency}")
                rows.append(other(spec, bench, concurrency))
        say("requests per second")
        rates = {name: requests_per_s(tool) for name, tool in tools.items()}
        most = (
            {name: ceiling(name, tool, url) for name, tool in tools.items()}
            if options.ceiling
            else {}
        )
    print(table(rows, most, rates))
    if options.json:
        figures = {"rows": [asdict(row) for row in rows], "requests_per_s": rates, "ceiling": most}
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
