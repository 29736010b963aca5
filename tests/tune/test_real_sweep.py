"""A sweep for real: the program, its child process, the bundled model, kill -9, resume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow.parquet as pq
import yaml

PROFILE = """
name: real
scenario: low_latency
model: tiny-deepseek
workload: {prompt_tokens: 24, output_tokens: 8, num_requests: 12}
arrivals: {kind: poisson, rate_per_s: 30}
slo: {ttft_p99_ms: 5000, tpot_p99_ms: 2000}
knobs: {max_model_len: 128, kv_cache_memory_bytes: 16777216}
search: {max_num_seqs: [2, 8], block_size: [16, 32]}
budget: {repetitions: 1}
"""
FIRST_TRIALS = 2
TRUSTING = Path(__file__).with_name("trusting.py")


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(TRUSTING), "sweep", *arguments], cwd=folder, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def wait_for_trials(root: Path, num: int, deadline_s: float = 120) -> Path:
    """The run folder, once it holds so many finished trials."""
    ends = time.monotonic() + deadline_s
    while time.monotonic() < ends:
        for lines in root.glob("*/trials.jsonl"):
            if lines.read_text().count("\n") >= num:
                return lines.parent
        time.sleep(0.02)
    raise AssertionError(f"fewer than {num} trials after {deadline_s} s")


def test_kill_9_then_resume_completes_the_plan_with_recomputable_figures(tmp_path: Path) -> None:
    (tmp_path / "real.yaml").write_text(PROFILE)
    program = start(tmp_path, "real.yaml")
    run = wait_for_trials(tmp_path / "reports", FIRST_TRIALS)
    engines = psutil.Process(program.pid).children()
    os.kill(program.pid, signal.SIGKILL)
    program.communicate()
    assert engines and psutil.wait_procs(engines, timeout=10)[1] == [], "no engine left behind"
    finished = (run / "trials.jsonl").read_bytes()

    resumed = start(tmp_path, "--resume", str(run))
    text, _ = resumed.communicate(timeout=180)
    assert resumed.returncode == 0, text
    assert (run / "trials.jsonl").read_bytes().startswith(finished), "kept, and not repeated"
    document = json.loads((run / "run.json").read_text())
    trials = [json.loads(line) for line in (run / "trials.jsonl").read_text().splitlines()]
    searched = [one["trial_id"] for one in trials if one["phase"] == "search"]
    assert searched == [one["trial_id"] for one in document["plan"]], "as if never interrupted"
    assert all(one["status"] == "measured" for one in trials)

    chosen = yaml.safe_load((run / "recommended.yaml").read_text())
    for side in (chosen["recommended"], chosen["default"]):
        ttft_ms: list[float] = []
        for ref in side["samples"]:
            path = run / "trials" / ref["trial_id"] / "requests.parquet"
            table = pq.read_table(path, filters=[("repetition", "==", ref["repetition"])])
            rows = table.to_pandas()
            assert len(rows) == 12 and set(rows.status) == {"ok"}
            assert set(rows.output_tokens) == {8} and set(rows.prompt_tokens) == {24}
            ttft_ms += list((rows.first_token_ns - rows.intended_ns) / 1e6)
        figure = side["figures"]["ttft_p50_ms"]["value"]
        assert abs(figure - np.percentile(ttft_ms, 50)) < 0.01 * figure
