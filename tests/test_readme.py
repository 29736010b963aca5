"""The README names only what exists: its commands, modules, files and tables."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SPANS = sorted(set(re.findall(r"`([^`\n]+)`", README)))
FENCED = [
    command.strip()
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in re.sub(r"\s*\\\n\s*", " ", block).splitlines()
    for command in (
        line.split(" #")[0].split(" && ") if line.startswith("dstune") else [line.split(" #")[0]]
    )
]
GROUPS = {"kernels": ("verify", "compile", "bench", "tune"), "trace": ("diff",),
          "gate": ("calibrate", "history", "accept")}  # fmt: skip


def dstune(*arguments: str) -> str:
    """What `dstune` with these arguments prints; fails when it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "dstune", *arguments], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},  # no option's name is cut
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


COMMANDS = sorted(
    {span for span in (*SPANS, *FENCED) if span.startswith("dstune ")}
    | {f"dstune {line.split('/dstune ')[1]}" for line in FENCED if "/dstune " in line}
)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_and_their_options_exist(command: str) -> None:
    verb, *arguments = shlex.split(command)[1:]
    below = arguments[:1] if arguments[:1] and arguments[0] in GROUPS.get(verb, ()) else []
    text = dstune(verb, *below, "--help")
    if verb == "sweep" and arguments:
        has_profile = any(one.endswith(".yaml") for one in arguments)
        assert has_profile != ("--resume" in arguments), f"{command}: one of the two"
    for option in (one for one in arguments if one.startswith("-")):
        assert option.split("=")[0] in text, f"{command}: {verb} has no {option}"
    for path in (one for one in arguments if one.endswith(".yaml")):
        assert (ROOT / path).is_file()


@pytest.mark.parametrize("name", [one for one in SPANS if re.fullmatch(r"dstune(\.\w+)+", one)])
def test_modules_exist(name: str) -> None:
    assert importlib.util.find_spec(name) is not None


NOT_OURS = ("trials/", ".venv/", "/")  # of a run folder, of an environment, routes
PATHS = [
    one
    for one in SPANS
    if re.fullmatch(r"[\w.-]*(/[\w.-]+)+\.?\w*", one) and not one.startswith(NOT_OURS)
]


@pytest.mark.parametrize("path", PATHS)
def test_paths_exist(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("route", [one for one in SPANS if re.fullmatch(r"(/\w+)+", one)])
def test_routes_exist(route: str) -> None:
    app = (ROOT / "dstune/server/http/app.py").read_text(encoding="utf-8")
    assert f'"{route}"' in app


def test_the_knob_table_is_the_one_that_the_command_prints() -> None:
    between = re.search(r"<!-- knobs: dstune (.*?) -->\n(.*?)<!-- /knobs -->", README, re.DOTALL)
    assert between is not None
    assert between[2] == dstune(*between[1].split())


def test_the_test_command_is_the_one_that_ci_runs() -> None:
    assert "grep -m1 'python -m pytest$' README.md" in (ROOT / ".ci" / "run").read_text()
    assert any(line.endswith("python -m pytest") for line in FENCED)
