"""Gate: what a person asked for becomes the two sides, an earlier version checked out for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dstune
from dstune.errors import UsageError
from dstune.gate.comparable import check_reproducible
from dstune.gate.sessions import Origin, origin_of
from dstune.gate.sides import Side, Source, check_sides, engine_of, started_by
from dstune.gate.worktree import checked_out, has_revision
from dstune.knobs import KnobValue, complete, parse_settings
from dstune.measure.run_folder import RECOMMENDED
from dstune.profile.load import load_profile

PROFILE_ENDINGS = (".yaml", ".yml")


@dataclass(frozen=True)
class Asked:
    """A paired comparison as the command line says it."""

    baseline: str  # a run, a recommended.yaml or a profile
    candidate: str | None = None  # a run or a recommended.yaml; the baseline's own unless given
    settings: tuple[str, ...] = ()  # knobs of the candidate, KNOB=VALUE
    overrides: tuple[str, ...] = ()  # keys of the profile, for both sides
    baseline_revision: str | None = None
    baseline_command: str | None = None
    candidate_command: str | None = None
    baseline_url: str | None = None
    candidate_url: str | None = None

    def check_starts_nothing(self, what: str) -> None:
        """Raises `UsageError` where something is to be started that `what` has no use for."""
        given = {
            "--set": self.settings,
            "--profile-set": self.overrides,
            "--baseline-revision": self.baseline_revision,
            "--baseline-command": self.baseline_command,
            "--candidate-command": self.candidate_command,
            "--baseline-url": self.baseline_url,
            "--candidate-url": self.candidate_url,
        }
        if wrong := [name for name, value in given.items() if value]:
            raise UsageError(f"{what} are compared as they are: leave {', '.join(wrong)} away")


def is_profile(name: str) -> bool:
    """Whether a name is that of a profile, not of what was measured."""
    path = Path(name)
    return path.suffix in PROFILE_ENDINGS and path.name != RECOMMENDED


def origin(name: str, root: Path, overrides: tuple[str, ...] = ()) -> Origin:
    """What a name says is to be run: a profile's own configuration, or that of a run."""
    if is_profile(name):
        profile = load_profile(Path(name), overrides)
        return Origin(profile.name, name, profile, complete(profile.knobs), {}, None)
    if overrides:
        raise UsageError("a run brings its own load: --profile-set goes with a profile alone")
    return origin_of(name, root)


@contextlib.contextmanager
def resolved(
    asked: Asked, root: Path, environment: Mapping[str, Any], notes: Callable[[str], None]
) -> Iterator[tuple[Side, Side]]:
    """Both sides, for as long as an earlier version is checked out.

    Raises `UsageError` where nothing differs, `NotComparable` where the model, the precision or
    the load does, or where the baseline was measured on another machine.
    """
    before = origin(asked.baseline, root, asked.overrides)
    after = before if asked.candidate is None else origin(asked.candidate, root)
    for note in check_reproducible(before, environment):
        notes(note)
    baseline = Side("baseline", before.profile, before.knobs)
    # prompts are the same for both, whatever seed each was measured with
    work = after.profile.workload.model_copy(update={"seed": before.profile.workload.seed})
    profile = after.profile.model_copy(update={"workload": work})
    candidate = Side("candidate", profile, _with(after.knobs, asked.settings))
    candidate = replace(candidate, source=_given(asked.candidate_command, asked.candidate_url))
    present = str(environment.get("git_revision") or "").removesuffix("+")
    if asked.settings and not candidate.source.is_embedded:
        raise UsageError(
            "--set turns knobs of dstune's own engine: a server is configured by its command"
        )
    with _earlier(asked, before, present, notes) as source:
        baseline = replace(baseline, source=source)
        check_sides(baseline, candidate)
        yield baseline, candidate


def candidate_of(asked: Asked, root: Path) -> Side:
    """The candidate alone, under the baseline's load."""
    after = origin(asked.baseline, root, asked.overrides)
    source = _given(asked.candidate_command, asked.candidate_url)
    return Side("candidate", after.profile, _with(after.knobs, asked.settings), source)


def _with(knobs: dict[str, KnobValue], settings: tuple[str, ...]) -> dict[str, KnobValue]:
    return {**knobs, **parse_settings(settings)} if settings else knobs


def _given(command: str | None, url: str | None, cwd: Path | None = None) -> Source:
    if command is not None and url is not None:
        raise UsageError("a side is started by a command or runs at a URL: give one of the two")
    if url is not None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"'{url}' is no URL: write http://HOST:PORT")
        return Source(url=url)
    return started_by(command, cwd) if command is not None else Source()


@contextlib.contextmanager
def _earlier(
    asked: Asked, before: Origin, present: str, notes: Callable[[str], None]
) -> Iterator[Source]:
    """What the baseline runs on. An earlier revision is looked for where none is named."""
    own = Path(dstune.__file__).parent
    if asked.baseline_url is not None or asked.baseline_command is not None:
        if asked.baseline_revision is None:
            yield _given(asked.baseline_command, asked.baseline_url)
            return
        if asked.baseline_url is not None:
            raise UsageError("a server at a URL has no revision to check out: leave one away")
    command = asked.baseline_command or asked.candidate_command
    revision = asked.baseline_revision
    if revision is not None:
        repository = Path.cwd() if command is not None else own
        with checked_out(repository, revision) as place:
            if command is None:
                yield engine_of(place, revision)
            else:
                yield started_by(command, place, revision)
        return
    recorded = (before.git_revision or "").removesuffix("+")
    is_own = asked.candidate_command is None and asked.candidate_url is None
    if not recorded or not is_own or recorded == present:
        yield Source()
    elif has_revision(own, recorded):
        lost = ", without the local changes of then" if before.git_revision != recorded else ""
        notes(f"the baseline runs on dstune as it was measured: revision {recorded[:12]}{lost}")
        with checked_out(own, recorded) as place:
            yield engine_of(place, recorded[:12])
    else:
        notes(
            f"the baseline was measured on dstune's revision {recorded[:12]}, which is not at "
            "hand: both sides run this installation, so its own changes are not seen"
        )
        yield Source()
