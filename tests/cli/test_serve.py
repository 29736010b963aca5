"""`dstune serve` from outside: what it refuses before it starts, and how it begins and ends."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from serving import MODEL, serving

from dstune.cli import serve as cli_serve
from dstune.measure.run_folder import RunFolder
from dstune.server.http import front


def dstune_serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dstune", "serve", *arguments],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "max_num_seq=3"], "did you mean 'max_num_seqs'?"),
        (["--set", "max_num_seqs=4096"], "max_num_batched_tokens"),
        (["--model", "nix", "--port", "0"], "unknown model 'nix'"),
        (["--host", "0.0.0.0"], "--api-key-file"),
        (["--host", "::"], "--api-key-file"),
        (["--port", "70000"], "--port"),
        (["--timeout", "nan"], "--timeout"),
        (["--rate-limit", "0"], "--rate-limit"),
        (["--max-waiting", "-1"], "--max-waiting"),
        (["--api-key-file", "/nowhere/key"], "/nowhere/key"),
        (["--host", "no.such.host.invalid", "--api-key-file", "KEY"], "no.such.host.invalid"),
    ],
)
def test_what_cannot_be_served_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("secret")
    done = dstune_serve(*(str(tmp_path / "key") if one == "KEY" else one for one in arguments))
    *log, line = done.stderr.splitlines()
    assert done.returncode == 2, done.stderr
    assert line.startswith("error: ") and said in line
    assert all(one.startswith("{") for one in log)


def test_a_port_that_is_taken_is_named_with_a_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = dstune_serve("--port", port)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and port in line and "--port" in line


def test_the_line_it_prints_works_and_ctrl_c_ends_it_in_order(tmp_path: Path) -> None:
    key = tmp_path / "key.txt"
    key.write_text("secret-key\n")
    with serving("--api-key-file", str(key)) as server:
        assert server.process.stdout is not None
        line = server.process.stdout.readline()
        words = shlex.split(line.replace(f"$(cat {key})", "secret-key"))
        assert words[0] == "curl" and words[1] == f"{server.url}/v1/chat/completions"
        headers = dict(one.split(": ") for one in words if one.startswith(("Auth", "Content")))
        answer = server.post("/v1/chat/completions", words[-1].encode(), headers)
        assert answer.status == 200 and answer.json()["model"] == MODEL
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(30) == 0
        events = [one["event"] for one in server.log_lines()]
        assert events == ["starting", "serving", "request", "stopped"]
        assert "secret-key" not in json.dumps(server.log_lines())


@pytest.mark.parametrize(
    ("model", "settings", "expected"),
    [
        (None, [], ("its-model", {"max_num_seqs": 8, "precision": "int8"})),
        ("other", ["precision=bf16"], ("other", {"max_num_seqs": 8, "precision": "bf16"})),
    ],
)
def test_a_recommendation_brings_its_model_and_knobs(
    monkeypatch: pytest.MonkeyPatch, model: str | None, settings: list[str], expected: object
) -> None:
    found = SimpleNamespace(model="its-model", knobs={"max_num_seqs": 8, "precision": "int8"})
    monkeypatch.setattr(RunFolder, "recommended", lambda name, root: found)
    served: list[object] = []

    def serve(options: object, model: str, _weights: str, _device: str, knobs: object,
              on_ready: object) -> int:  # fmt: skip
        served.append((model, knobs))
        return 0

    monkeypatch.setattr(front, "serve", serve)
    assert cli_serve.run(model=model, port=0, settings=settings, recommended="a-run") == 0
    assert served == [expected]
