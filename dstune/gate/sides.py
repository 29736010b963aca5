"""Gate: the two sides of a comparison, and how each is started."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dstune.errors import NotComparable, UsageError
from dstune.gate.comparable import differing
from dstune.gate.sessions import workload_of
from dstune.knobs import KnobValue
from dstune.profile.model import Profile
from dstune.target.command import PORT, CommandTarget, ServerCommand
from dstune.target.embedded import OWN_PROGRAM, EmbeddedTarget, EngineProgram
from dstune.target.open import Access
from dstune.target.target import Target
from dstune.target.url import UrlTarget

SideName = Literal["baseline", "candidate"]


@dataclass(frozen=True)
class Source:
    """Where a side's system comes from."""

    program: EngineProgram = OWN_PROGRAM  # of this installation unless given
    server: ServerCommand | None = None
    url: str | None = None  # runs already
    revision: str | None = None  # what it is a version of, for people

    @property
    def is_embedded(self) -> bool:
        """Whether dstune's own engine is under load."""
        return self.server is None and self.url is None

    def describe(self) -> str:
        """In a few words."""
        if self.revision is not None:
            return f"revision {self.revision}"
        if self.url is not None:
            return self.url
        if self.server is not None:
            return self.server.line
        is_own = self.program == OWN_PROGRAM
        return "this installation" if is_own else " ".join(self.program.command)


@dataclass(frozen=True)
class Side:
    """One side: what runs, under which configuration."""

    name: SideName
    profile: Profile
    knobs: dict[str, KnobValue]
    source: Source = Source()

    def open(self, log_path: Path, access: Access | None = None, traces: bool = False) -> Target:
        """Starts it; raises as `open_target` does."""
        access = access or Access()
        profile, source = self.profile, self.source
        if source.url is not None:
            return UrlTarget(source.url, profile.model, log_path, access.num_processes,
                             access.api_key)  # fmt: skip
        if source.server is not None:
            return CommandTarget(source.server, profile.model, log_path, access.num_processes)
        return EmbeddedTarget(
            profile.model,
            weights=profile.weights,
            log_path=log_path,
            driver=profile.driver,
            num_processes=access.num_processes,
            program=replace(source.program, traces=traces),
        )


def started_by(command: str, cwd: Path | None = None, revision: str | None = None) -> Source:
    """A command that serves on {port}, or one that is another installation's engine."""
    if PORT in command:
        return Source(server=ServerCommand(command, cwd), revision=revision)
    if "dstune.server" not in command:
        raise UsageError(
            f"'{command}' is neither a server's command, which says where its port goes as {PORT}, "
            "nor an engine's, such as OTHER/.venv/bin/python -m dstune.server"
        )
    return Source(program=EngineProgram(tuple(command.split()), cwd), revision=revision)


def engine_of(checkout: Path, revision: str) -> Source:
    """dstune's engine as it stands in a checkout, run by this interpreter."""
    if not (checkout / "dstune" / "server").is_dir():
        raise UsageError(f"revision {revision} holds no dstune.server to run")
    program = EngineProgram((sys.executable, "-m", "dstune.server"), checkout)
    return Source(program=program, revision=revision)


def fit_together(sides: Sequence[Side], environment: Mapping[str, Any]) -> bool:
    """Whether both sides can be up at once: an engine takes most of a GPU's memory."""
    return not environment.get("gpus") or all(one.source.url is not None for one in sides)


def check_sides(baseline: Side, candidate: Side) -> None:
    """Raises `UsageError` where nothing differs, `NotComparable` where too much does."""
    wrong = [
        f"{name}: {mine} and {theirs}"
        for name, mine, theirs in (
            ("model", baseline.profile.model, candidate.profile.model),
            *((name, baseline.knobs.get(name), candidate.knobs.get(name))
              for name in ("precision", "kv_cache_dtype")),
        )
        if mine != theirs
    ]  # fmt: skip
    loads = (workload_of(baseline.profile, has_hostile=False),
             workload_of(candidate.profile, has_hostile=False))  # fmt: skip
    wrong += [f"{key}: {mine} and {theirs}" for key, mine, theirs in differing(*loads)]
    if wrong:
        raise NotComparable(f"baseline and candidate are not comparable: {'; '.join(wrong)}")
    if baseline.knobs == candidate.knobs and baseline.source == candidate.source:
        raise UsageError(
            "nothing differs between baseline and candidate: give --candidate RUN or --set "
            "KNOB=VALUE for another configuration, --baseline-revision or --baseline-command for "
            "an earlier version, --stored to compare with what was measured then, or use dstune "
            "gate calibrate"
        )
