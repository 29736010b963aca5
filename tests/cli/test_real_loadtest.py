"""Load tests for real: the program, Locust, the bundled model behind HTTP; a Ctrl-C; a URL.

Nothing is claimed about latencies: the machine may be busy, and then the verdict says so.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pyarrow.parquet as pq
import pytest
from fronts import SteeredFront

from dstune.knobs import complete
from dstune.measure.anomalies import Anomaly

PROFILE = """
name: real
scenario: low_latency
model: tiny-deepseek
workload: {prompt_tokens: 24, output_tokens: 8, anomalies: 0.3}
arrivals: {kind: poisson, rate_per_s: 5}
slo: {ttft_p99_ms: 20000, tpot_p99_ms: 10000}
knobs: {max_model_len: 128, kv_cache_memory_bytes: 16777216}
"""
COLUMNS = [
    "request_id", "trial_id", "repetition", "process", "session_id", "turn", "kind", "status",
    "error", "http_status", "intended_ns", "sent_ns", "first_token_ns", "last_token_ns", "done_ns",
    "chunk_offsets_ns", "chunk_tokens", "prompt_tokens", "output_tokens", "token_source",
    "cached_tokens", "queue_ns", "precision", "backend",
]  # fmt: skip
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
PATIENCE_S = 180.0


@dataclass
class Ended:
    """A load test that is over, and what it left."""

    code: int
    text: str
    run: dict[str, Any]
    trials: list[dict[str, Any]]
    rows: pd.DataFrame

    @property
    def trial(self) -> dict[str, Any]:
        (trial,) = self.trials
        assert trial["status"] == "measured", trial["reason"]
        return trial


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    (folder / "real.yaml").write_text(PROFILE)
    return subprocess.Popen(
        [sys.executable, "-m", "dstune", "loadtest", "real.yaml", *arguments], cwd=folder, env=ENV,
        text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def end(program: subprocess.Popen[str], folder: Path) -> Ended:
    text, _ = program.communicate(timeout=PATIENCE_S)
    (run,) = (folder / "reports").iterdir()
    lines = (run / "trials.jsonl").read_text().splitlines()
    rows = pq.read_table(run / "trials/loadtest/requests.parquet").to_pandas()
    document = json.loads((run / "run.json").read_text())
    return Ended(program.returncode, text, document, [json.loads(one) for one in lines], rows)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """One load test on the engine that dstune starts, for tests that only look."""
    folder = tmp_path_factory.mktemp("real")
    return end(start(folder, "--rate", "6", "--duration", "8s", "--processes", "2"), folder)


def test_it_ends_with_a_verdict_and_the_documented_columns(done: Ended) -> None:
    # 48 requests are too few to claim a p99
    assert done.code == 3, done.text
    assert (done.run["status"], done.run["verdict"]["exit_code"]) == ("finished", 3)
    assert "finished: inconclusive: " in done.text
    assert list(done.rows.columns) == COLUMNS
    assert done.run["notes"] == [], "the engine forgets its cache, so no other seed is needed"


def test_every_request_is_accounted_for(done: Ended) -> None:
    accounting = done.trial["accounting"]
    assert accounting["num_planned"] == len(done.rows) == 48
    assert accounting["by_status"] == dict(Counter(done.rows.status))
    assert done.rows.request_id.is_unique
    assert set(done.rows.process) == {0, 1}
    normal = done.rows[done.rows.kind == "normal"]
    assert len(normal) == 48 - accounting["num_hostile"]
    assert set(normal.status) == {"ok"} and accounting["by_error"] == {}


def test_normal_requests_are_measured_in_order_of_time(done: Ended) -> None:
    normal = done.rows[done.rows.kind == "normal"]
    assert set(normal.prompt_tokens) == {24} and set(normal.output_tokens) == {8}
    assert set(normal.token_source) == {"usage"} and set(normal.http_status) == {200}
    assert (normal.backend != "").all() and (normal.precision != "").all()
    assert (normal.queue_ns >= 0).all()
    for earlier, later in (
        ("intended_ns", "sent_ns"),
        ("sent_ns", "first_token_ns"),
        ("first_token_ns", "last_token_ns"),
        ("last_token_ns", "done_ns"),
    ):
        assert (normal[earlier] <= normal[later]).all(), (earlier, later)  # fmt: skip
    for row in normal.itertuples():
        assert sum(row.chunk_tokens) == 8
        assert row.sent_ns + row.chunk_offsets_ns[0] == row.first_token_ns
        assert row.sent_ns + row.chunk_offsets_ns[-1] == row.last_token_ns
    begin, last = done.rows.intended_ns.min(), done.rows.intended_ns.max()
    assert 0 < last - begin <= 8e9, "the schedule lies within the duration"


def test_hostile_requests_were_sent_and_ended_as_they_should(done: Ended) -> None:
    kinds = Counter(done.rows.kind[done.rows.kind != "normal"])
    assert sum(kinds.values()) == round(0.3 * 48)
    assert set(kinds) == {one.value for one in Anomaly}, "each kind, as there is room for all"
    told = {one["kind"]: (one["num"], one["num_as_expected"]) for one in done.trial["anomalies"]}
    assert told == {kind: (num, num) for kind, num in kinds.items()}


def test_the_server_counted_as_many_first_tokens_as_the_client_saw(done: Ended) -> None:
    seen = int(done.rows.first_token_ns.notna().sum())
    # one that hangs up does so after its first token
    assert seen == int(done.rows.status.isin(["ok", "cancelled"]).sum())
    assert done.trial["server_latencies"]["service_ttft"]["num"] == seen
    assert done.trial["server_counts"]["generation_tokens"] >= done.rows.output_tokens.sum()


def test_a_ctrl_c_in_the_middle_keeps_the_samples_and_leaves_no_process(tmp_path: Path) -> None:
    program = start(tmp_path, "--rate", "6", "--duration", "10m", "--processes", "2")
    seen_ok = (re.search(r"([\d,]+) ok; so far", line) for line in program.stdout or ())
    assert any(int(found[1].replace(",", "")) > 0 for found in seen_ok if found), "some have ended"
    children = psutil.Process(program.pid).children(recursive=True)
    program.send_signal(signal.SIGINT)
    ended = end(program, tmp_path)
    assert ended.code == 130, ended.text
    assert ended.run["status"] == "interrupted"
    assert "what was measured is kept: " in ended.text
    accounting = ended.trial["accounting"]
    assert accounting["num_planned"] == len(ended.rows) == 3600
    assert accounting["by_status"] == dict(Counter(ended.rows.status))
    assert accounting["by_status"]["ok"] > 0 and accounting["by_status"]["unsent"] > 3000
    assert ended.trial["server_latencies"]["service_ttft"]["num"] > 0
    assert ended.rows.sent_ns[ended.rows.status == "unsent"].isna().all()
    assert len(children) >= 4, "two load processes, the front and the engine"
    assert psutil.wait_procs(children, timeout=PATIENCE_S)[1] == []


def test_a_server_at_a_url_is_loaded_with_prompts_of_its_own(tmp_path: Path) -> None:
    knobs = complete({"max_model_len": 128, "kv_cache_memory_bytes": 16 << 20})
    with SteeredFront(dict(knobs)) as front:
        url = f"http://127.0.0.1:{front.port}"
        ended = end(start(tmp_path, "--target", url, "--rate", "6", "--duration", "5s"), tmp_path)
        assert ended.code == 3, ended.text
        seed = ended.run["profile"]["workload"]["seed"]
        assert f"note: {ended.run['notes'][0]}" in ended.text
        assert f"workload.seed={seed}" in ended.run["notes"][0]
        assert len(ended.rows) == 30
        assert set(ended.rows.status[ended.rows.kind == "normal"]) == {"ok"}
        assert all(one["num"] == one["num_as_expected"] for one in ended.trial["anomalies"])
        assert ended.trial["effective"] == {"max_model_len": 128}
        assert front.process.poll() is None, "it is not ours to stop"
        refused = start(tmp_path, "--target", url, "--set", "workload.prompt_tokens=200",
                        "--set", "knobs={}", "--json")  # fmt: skip
        text, _ = refused.communicate(timeout=PATIENCE_S)
    assert refused.returncode == 2
    errors = [line for line in text.splitlines() if line.startswith("error: ")]
    assert errors == [
        "error: the longest request takes 208 tokens (200 prompt + 8 output), but max_model_len "
        "of tiny-deepseek is 128 here"
    ]


def test_a_url_at_which_nothing_listens_is_one_line_and_exit_5(tmp_path: Path) -> None:
    program = start(tmp_path, "--target", "http://127.0.0.1:9", "--duration", "5s")
    text, _ = program.communicate(timeout=PATIENCE_S)
    assert program.returncode == 5
    errors = [line for line in text.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "nothing to load at http://127.0.0.1:9" in errors[0]
