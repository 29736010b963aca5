"""The files in `loadtests/` as plain `locust -f` runs them, and where dstune finds them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from load_child import PATIENCE_S, ask, scripted_server

from dstune.errors import DstuneError
from dstune.load.client.command import command, locustfile_path

QUICK = ("--ttft-ms", "5", "--itl-ms", "1", "--tokens", "8")


def locust(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    path = str(locustfile_path(name))
    return subprocess.run(
        [sys.executable, "-m", "locust", "-f", path, "--headless", *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def rows(finished: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Locust's statistics by type; `--json` prints them last."""
    found: list[dict[str, Any]] = json.loads(finished.stdout)
    return {row["method"]: row for row in found}


@pytest.mark.parametrize("name", ["chat", "batch"])
def test_plain_locust_runs_the_file(name: str) -> None:
    with scripted_server(*QUICK) as url:
        done = locust(name, "--host", url, "-u", "3", "-t", "1s", "--output-tokens", "8", "--json")
        asked = ask(url, "/asked", {})
    assert done.returncode == 0, done.stderr
    by_type = rows(done)
    assert set(by_type) == {"POST", "TTFT", "TPOT"}
    assert by_type["POST"]["num_requests"] == by_type["TTFT"]["num_requests"] > 20
    assert by_type["POST"]["num_failures"] == 0
    assert {one["model"] for one in asked} == {"scripted"}
    assert {one["max_tokens"] for one in asked} == {8}
    assert all(("messages" in one) == (name == "chat") for one in asked)


def test_no_two_workers_send_one_prompt() -> None:
    with scripted_server(*QUICK) as url:
        options = ("--host", url, "-u", "4", "-r", "4", "-t", "2s", "--processes", "2")
        options = (*options, "--prompt-words", "20", "--output-tokens", "4")
        done = locust("batch", *options)
        asked = [one["prompt"] for one in ask(url, "/asked", {})]
    assert done.returncode == 0, done.stderr
    assert {one.split(".")[0] for one in asked} == {"0", "1"}
    beginnings = {" ".join(one.split()[1:5]) for one in asked}
    assert len(set(asked)) == len(asked) > 40
    assert len(beginnings) > 0.95 * len(asked)
    assert {len(one.split()) for one in asked} == {21}


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("http://127.0.0.1:9", "does not answer"),
        ("http://no-such-host.invalid", "does not answer"),
        ("nonsense", "does not answer"),
        ("", "no host"),
    ],
)
def test_a_wrong_host_ends_it_at_once_with_one_line(host: str, why: str) -> None:
    begun = time.monotonic()
    done = locust("chat", "--skip-log-setup", "-t", "60s", *(["--host", host] if host else []))
    assert done.returncode != 0
    (line,) = done.stderr.strip().split("\n")
    assert line.startswith("locust: ") and why in line
    assert time.monotonic() - begun < 30


def test_a_host_without_a_model_ends_it_at_once(server: str) -> None:
    done = locust("chat", "--skip-log-setup", "-t", "60s", "--host", server + "/nowhere")
    assert done.returncode != 0 and "/nowhere/v1/models" in done.stderr


def test_nothing_completed_is_a_failure() -> None:
    with scripted_server("--mode", "server_error") as url:
        options = ("--host", url, "-u", "2", "-t", "1s", "--exit-code-on-error", "0", "--json")
        done = locust("chat", *options)
    assert done.returncode == 1
    assert rows(done)["POST"]["num_failures"] == rows(done)["POST"]["num_requests"] > 0


def test_what_is_in_flight_at_the_end_is_waited_for() -> None:
    with scripted_server("--ttft-ms", "1500", "--itl-ms", "1", "--tokens", "4") as url:
        options = (
            "--host",
            url,
            "-u",
            "3",
            "-r",
            "3",
            "-t",
            "1s",
            "--output-tokens",
            "4",
            "--json",
        )
        done = locust("chat", *options)
    assert done.returncode == 0, done.stderr
    assert rows(done)["POST"]["num_requests"] == 3


def test_the_web_ui_runs_it_too(tmp_path: Path) -> None:
    with scripted_server(*QUICK) as url, (tmp_path / "log").open("w") as log:
        path = str(locustfile_path("chat"))
        options = ["--web-host", "127.0.0.1", "--web-port", "0", "--host", url]
        port = _free_port()
        options[3] = str(port)
        process = subprocess.Popen(
            [sys.executable, "-m", "locust", "-f", path, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            ui = f"http://127.0.0.1:{port}"
            _patiently(lambda: urllib.request.urlopen(ui, timeout=5).close())
            form = urllib.parse.urlencode({"user_count": 5, "spawn_rate": 5, "host": url}).encode()
            with urllib.request.urlopen(ui + "/swarm", form, timeout=10) as answer:
                assert json.load(answer)["success"]

            def shows_both() -> None:
                with urllib.request.urlopen(ui + "/stats/requests", timeout=5) as answer:
                    stats = json.load(answer)
                shown = {one["method"]: one["num_requests"] for one in stats["stats"]}
                assert stats["user_count"] == 5 and shown["TTFT"] > 10 and shown["POST"] > 10

            _patiently(shows_both)
        finally:
            process.terminate()
            assert process.wait(30) == 0, (tmp_path / "log").read_text()


def _free_port() -> int:

    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


def _patiently(attempt: Any) -> None:
    """Until it works."""
    deadline = time.monotonic() + 30
    while True:
        try:
            attempt()
            return
        except (OSError, AssertionError, KeyError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def test_the_command_imports_neither_locust_nor_gevent() -> None:
    code = (
        "import sys; from dstune.load.client.command import command, locustfile_path;"
        "print(command(locustfile_path('chat'), 5, 1));"
        "sys.exit(bool({'locust', 'gevent', 'httptools'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_a_file_that_is_missing_is_named() -> None:
    assert command(Path("x.py"), 7, 2)[-4:] == ["--dstune-fd", "7", "--dstune-process", "2"]
    with pytest.raises(DstuneError, match=r"nothing\.py is missing"):
        locustfile_path("nothing")
