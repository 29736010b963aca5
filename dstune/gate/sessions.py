"""Gate: what a person names becomes sessions: runs of one subject with their figures.

A run folder, a recommended.yaml, a committed baseline, a session's JSON, or what another tool
measured. Figures are computed anew from the raw samples, one repetition at a time.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from dstune.errors import DstuneError, UsageError
from dstune.gate.baselines import (
    check_version,
    first_problem,
    read_baseline,
    read_session_file,
    read_stored,
)
from dstune.gate.places import Place, find
from dstune.knobs import KnobValue, complete
from dstune.measure.comparison import GateResult, QualityScores, RunFigures, Session, Subject
from dstune.measure.record import (
    Figures,
    Recommendation,
    Remark,
    Repetition,
    Run,
    TrialRecord,
)
from dstune.measure.run_folder import RunFolder
from dstune.measure.sample import Sample
from dstune.profile.load import restore_profile
from dstune.profile.model import Profile
from dstune.stats.figures import figures_of
from dstune.stats.metrics import is_ok
from dstune.tune.bench import limits_of, loop_of

_CANDIDATE = re.compile(r"(?P<run>[ps]\d+r*-candidate)(?:-\d+)?")
"""Trial ids of a gate: p01-candidate; p01r-candidate, measured again; p01-candidate-2, its load."""


@dataclass(frozen=True)
class Origin:
    """What it takes to measure a result again."""

    run: str
    source: str
    profile: Profile
    knobs: dict[str, KnobValue]
    environment: dict[str, Any] = field(default_factory=dict)  # empty: never measured
    git_revision: str | None = None


@dataclass(frozen=True)
class Load:
    """One repetition of a trial."""

    trial: TrialRecord
    repetition: Repetition


@dataclass(frozen=True)
class RunParts:
    """A run folder with what stands for its result: each run by its name, with its loads."""

    folder: RunFolder
    run: Run
    profile: Profile
    loads: dict[str, tuple[Load, ...]]
    quality: QualityScores | None = None

    @property
    def first(self) -> TrialRecord:
        """The trial of the first load; all have one configuration."""
        return next(iter(self.loads.values()))[0].trial


def read_sessions(name: str, root: Path) -> list[Session]:
    """The sessions that a person names, oldest first.

    `name` is a run folder, a run's name below `root`, a recommended.yaml, a baseline (its file,
    its folder, or its name below `root`/baselines), a session's JSON, or a file or folder of
    another tool's results. Raises `UsageError` where there is nothing to read.
    """
    place = find(name, root)
    if place.kind == "baselines":
        found = [read_stored(path) for path in place.files]
    elif place.kind == "sessions":
        found = [read_session_file(path) for path in place.files]
    elif place.kind == "other":
        from dstune.stats.imported import read_results  # the readers of every format

        found = [read_results(place.path)]
    else:
        found = [session_of(run_parts(place, root))]
    return sorted(found, key=lambda one: (one.started_utc, one.name))


def origin_of(name: str, root: Path) -> Origin:
    """What a re-run of a named result needs; of several baselines the newest one's.

    Raises `UsageError` for results that do not tell it.
    """
    place = find(name, root)
    if place.kind == "baselines":
        path, newest = max(
            ((path, read_baseline(path)) for path in place.files),
            key=lambda one: (one[1].session.started_utc, one[1].session.name),
        )
        subject = newest.session.subject
        return Origin(
            run=newest.session.name,
            source=str(path),
            profile=restore_profile(newest.profile, str(path)),
            knobs=complete(subject.knobs),
            environment=subject.environment,
            git_revision=subject.environment.get("git_revision"),
        )
    if place.kind in ("sessions", "other"):
        raise UsageError(
            f"{place.path} holds results without what a re-run needs: compare with --stored, or "
            "say by --baseline-command what to run"
        )
    found = run_parts(place, root)
    return Origin(
        run=found.folder.path.name,
        source=str(found.folder.path),
        profile=found.profile,
        knobs=complete(found.first.knobs),
        environment=found.run.environment,
        git_revision=found.run.environment.get("git_revision"),
    )


def run_parts(place: Place, root: Path) -> RunParts:
    """What was measured in a run that a place names; raises `UsageError` where nothing was."""
    folder, chosen = RunFolder(place.path), None
    if place.kind == "recommended":
        folder, chosen = _run_of(place.path, root)
    run = _read_run(folder)
    profile = restore_profile(run.profile, f"{folder.path}/run.json")
    if run.verb == "sweep":
        chosen = chosen or folder.recommendation()
        if chosen is None:
            raise _nothing(folder, run, "it recommended anything")
        return RunParts(folder, run, profile, _confirmed(folder, chosen))
    if run.verb not in ("loadtest", "gate"):
        raise UsageError(f"{folder.path} is a {run.verb}: it holds no load to compare")
    result = folder.gate_result()
    trials = [one for one in folder.trials() if one.is_measured]
    loads = _of_candidate(trials, result) if run.verb == "gate" else {
        one.trial_id: tuple(Load(one, repetition) for repetition in one.repetitions)
        for one in trials if one.phase == "loadtest" and one.repetitions
    }  # fmt: skip
    if not loads:
        raise _nothing(folder, run, "anything was measured")
    return RunParts(folder, run, profile, loads, result.candidate.quality if result else None)


def _read_run(folder: RunFolder) -> Run:
    """run.json; that it is of another version is told before which of its fields is wrong."""
    path = folder.path / "run.json"
    with contextlib.suppress(ValueError):  # no JSON at all: the reader tells
        data = json.loads(path.read_bytes())
        if isinstance(data, dict) and "schema_version" in data:
            check_version(path, data)
    return folder.read_run()


def session_of(found: RunParts) -> Session:
    """The session of a run folder's result; raises `DstuneError` for damaged samples."""
    return Session(
        name=found.folder.path.name,
        source=str(found.folder.path),
        started_utc=found.run.started_utc,
        subject=subject_of(found.profile, found.first, found.run.environment, found.run.verb),
        runs=tuple(_figures(found, name, loads) for name, loads in found.loads.items()),
        quality=found.quality,
    )


def raw_samples(folder: RunFolder, load: Load) -> list[Sample] | None:
    """A load's raw samples; None where they were not kept. Raises `DstuneError` for damage."""
    path = folder.trial_folder(load.trial.trial_id) / "requests.parquet"
    if not path.is_file():
        return None
    samples = folder.samples(load.trial.trial_id)
    kept = [one for one in samples if one.repetition == load.repetition.repetition]
    if len(kept) != load.repetition.num_requests:
        raise DstuneError(
            f"{path} holds {len(kept)} of {load.repetition.num_requests} requests: restore it, or "
            "measure again"
        )
    return kept


def subject_of(
    profile: Profile, trial: TrialRecord, environment: dict[str, Any], verb: str
) -> Subject:
    """What a trial of a profile measured."""
    digest = trial.model.get("digest")
    precision = trial.effective.get("precision")
    kv_cache_dtype = trial.effective.get("kv_cache_dtype")
    return Subject(
        tool="dstune",
        model=str(trial.model.get("name", profile.model)),
        model_digest=None if digest is None else str(digest),
        precision=None if precision is None else str(precision),
        kv_cache_dtype=None if kv_cache_dtype is None else str(kv_cache_dtype),
        workload=workload_of(profile, has_hostile=verb == "loadtest"),
        knobs=trial.knobs,
        environment=environment,
    )


def workload_of(profile: Profile, has_hostile: bool) -> dict[str, Any]:
    """The parts of a profile that decide the load, as plain data with every key.

    Hostile requests are sent by a load test alone, so elsewhere their share is 0. Of a trace the
    digest counts, not where it lies.
    """
    data = profile.model_dump(mode="json", include={"workload", "arrivals", "driver"})
    data["arrivals"].pop("path")
    if not has_hostile:
        data["workload"]["anomalies"] = 0.0
    return data


def run_figures(
    name: str,
    loads: Sequence[Sequence[Sample]],
    profile: Profile,
    started_utc: str = "",
    remarks: Sequence[Remark] = (),
) -> RunFigures:
    """One run's figures, from its loads' raw samples; a normal request that is not ok has failed.

    That counts also what was cut short or never sent: then the load was another one.
    """
    normal = [one for samples in loads for one in samples if one.kind == "normal"]
    num_ok = sum(map(is_ok, normal))
    return RunFigures(
        name=name,
        started_utc=started_utc,
        num_ok=num_ok,
        num_failed=len(normal) - num_ok,
        figures=_values(figures_of(loads, loop_of(profile), limits_of(profile))),
        remarks=tuple(remarks),
    )


def _values(figures: Figures) -> dict[str, float]:
    return {key: one.value for key, one in figures.items() if one.value is not None}


def _of_candidate(
    trials: Sequence[TrialRecord], result: GateResult | None
) -> dict[str, tuple[Load, ...]]:
    """A gate's runs of its candidate, each with its loads: those that it judged, once it did.

    A pair that could not be trusted was measured again, its prefix with an r more.
    """
    found: dict[str, list[Load]] = {}
    for trial in trials:
        match = _CANDIDATE.fullmatch(trial.trial_id)
        if trial.phase == "gate" and match is not None:
            loads = [Load(trial, one) for one in trial.repetitions]
            found.setdefault(match["run"], []).extend(loads)
    if result is not None:
        judged = {one.name for one in result.candidate.runs}
        return {name: tuple(loads) for name, loads in found.items() if name in judged}
    last = {name.replace("r-", "-"): name for name in found}  # later ones replace earlier ones
    return {name: tuple(found[name]) for name in last.values()}


def _confirmed(folder: RunFolder, chosen: Recommendation) -> dict[str, tuple[Load, ...]]:
    """The repetitions that recommended.yaml names; all of them must be there."""
    there = {
        (one.trial_id, repetition.repetition): Load(one, repetition)
        for one in folder.trials()
        for repetition in one.repetitions
    }
    found: dict[str, tuple[Load, ...]] = {}
    for ref in chosen.recommended.samples:
        if (ref.trial_id, ref.repetition) not in there:
            raise DstuneError(
                f"{folder.path}/trials.jsonl lacks {ref.trial_id}, which recommended.yaml rests "
                "on: restore the run folder, or sweep again"
            )
        found[ref.trial_id] = (there[ref.trial_id, ref.repetition],)
    if not found:
        raise UsageError(f"{folder.path}/recommended.yaml names no samples: sweep again")
    return found


def _figures(found: RunParts, name: str, loads: Sequence[Load]) -> RunFigures:
    """One run, from its raw samples, or from what is stored where those were thrown away."""
    started_ns = found.run.wall_clock_zero_ns + loads[0].repetition.started_ns
    started_utc = datetime.fromtimestamp(started_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    remarks = [remark for one in loads for remark in one.repetition.remarks]
    kept = [raw_samples(found.folder, one) for one in loads]
    there = [samples for samples in kept if samples is not None]
    if len(there) == len(loads):
        return run_figures(name, there, found.profile, started_utc, remarks)
    trial = loads[0].trial
    success = next((one for one in trial.slo if one.key == "success_rate"), None)
    if success is None or len(loads) > 1 or len(trial.repetitions) > 1:
        raise DstuneError(
            f"{found.folder.trial_folder(trial.trial_id)}/requests.parquet is missing: restore "
            "it, or measure again"
        )
    return RunFigures(
        name=name,
        started_utc=started_utc,
        num_ok=success.num_samples - success.num_over,
        num_failed=success.num_over,
        figures=_values(loads[0].repetition.figures),
        remarks=tuple(remarks),
    )


def _run_of(path: Path, root: Path) -> tuple[RunFolder, Recommendation]:
    """The run that a recommended.yaml belongs to: the folder it lies in, else its name in root."""
    chosen = _read_recommendation(path)
    for folder in (path.parent, root / chosen.run):
        is_its = folder.name == chosen.run or path.name == "recommended.yaml"
        if is_its and (folder / "run.json").is_file():
            return RunFolder(folder), chosen
    raise UsageError(
        f"{path} is a copy without its run: run.json (profile, environment) and trials/ (raw "
        f"samples) are missing; name the run folder {chosen.run}, or put it below {root}"
    )


def _read_recommendation(path: Path) -> Recommendation:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        why = str(error).split("\n")[0]
        raise UsageError(f"{path} cannot be read as a recommended.yaml: {why}") from None
    if isinstance(data, dict) and "workload" in data:
        raise UsageError(f"{path} is a profile, not a result: first run dstune sweep {path}")
    try:
        return Recommendation.model_validate(data)
    except ValidationError as error:
        why = first_problem(error)
        raise UsageError(f"{path} is no recommended.yaml of this version: {why}") from None


def _nothing(folder: RunFolder, run: Run, what: str) -> UsageError:
    """Why a run has no result, and what to do."""
    if folder.is_locked():
        return UsageError(f"{folder.path} is still being written: wait for it to end")
    again = shlex.join(["dstune", *run.argv])
    if run.status in ("interrupted", "running"):
        how = f"dstune sweep --resume {folder.path}" if run.verb == "sweep" else again
        verb = "go on with" if run.verb == "sweep" else "run it again with"
        return UsageError(f"{folder.path} was interrupted before {what}: {verb} {how}")
    said = run.verdict.message if run.verdict else run.status
    if run.status == "failed":
        return UsageError(f"{folder.path} failed before {what} ({said}): run it again with {again}")
    if run.verb == "sweep":
        return UsageError(f"{folder.path} recommended nothing ({said}): name a run that did")
    return UsageError(f"{folder.path} measured nothing itself ({said}): name a run that did")
