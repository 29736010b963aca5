"""A server that a command starts: found ready, loaded, and stopped with all that it started."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest
from fakes import TEXT

from dstune.errors import TargetError, UsageError
from dstune.load.build import build_plan
from dstune.profile.load import parse_profile
from dstune.target.command import CommandTarget, ServerCommand

SERVE = f"{sys.executable} -m dstune serve --port {{port}} --set max_model_len=256"
PROFILE = """
name: short
workload: {prompt_tokens: 16, output_tokens: 4, num_requests: 4}
arrivals: {kind: concurrency, concurrency: 2}
"""


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def test_a_real_server_is_started_loaded_and_leaves_nothing(tmp_path: Path) -> None:
    before = {one.pid for one in children()}
    target = CommandTarget(ServerCommand(SERVE), "tiny-deepseek", tmp_path / "log")
    try:
        assert target.configure({}).model["name"] == "tiny-deepseek"
        tokens = target.tokenize(TEXT)
        target.reset_caches()
        result = target.run(build_plan(parse_profile("short.yaml", PROFILE), 0, tokens))
        assert [one.output_tokens for one in result.samples] == [4] * 4
        started = [one for one in children() if one.pid not in before]
        assert len(started) >= 2  # the front and its engine
    finally:
        target.stop()
    target.stop()  # harmless
    _, alive = psutil.wait_procs(started, timeout=10)
    assert not alive


def test_a_command_has_to_say_where_its_port_goes() -> None:
    with pytest.raises(UsageError, match=r"as \{port\}: vllm serve"):
        ServerCommand("vllm serve model")


def test_a_server_that_ends_is_reported_with_its_first_error(tmp_path: Path) -> None:
    code = "print('loading'); print('ValueError: no such model'); raise SystemExit('see above')"
    command = ServerCommand(f'{sys.executable} -c "{code}" {{port}}')
    (tmp_path / "log").write_text("RuntimeError: of an earlier server\n")
    with pytest.raises(TargetError, match="status 1: ValueError: no such model; its log is"):
        CommandTarget(command, "any", tmp_path / "log")


def test_a_program_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot start no-such-program: No such file"):
        CommandTarget(ServerCommand("no-such-program {port}"), "any", tmp_path / "log")
