"""Gate: one figure over everything that was measured, in groups that can be compared.

Runs below the root and committed baselines become rows; where the level changes for good, the row
is marked. What cannot be read is told and passed over.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dstune.errors import DstuneError, UsageError
from dstune.gate.baselines import baseline_files, read_baseline
from dstune.gate.comparable import doubts_of, host_digest
from dstune.gate.places import Place, find
from dstune.gate.sessions import read_sessions, run_parts, session_of
from dstune.knobs import DEFAULTS
from dstune.measure.comparison import Session, Subject
from dstune.measure.history import History, HistoryGroup, HistoryRow, SkippedRun
from dstune.measure.record import Estimate
from dstune.measure.run_folder import RunFolder
from dstune.profile.load import restore_profile
from dstune.stats.intervals import mean_estimate, ratio_estimate
from dstune.tune.recommendation import describe_load

_VERBS = ("sweep", "loadtest", "gate")


@dataclass(frozen=True)
class _Entry:
    """A session and where it comes from."""

    session: Session
    verb: str
    profile: str = ""
    load: str = ""
    is_accepted: bool = False


def history(
    root: Path,
    baselines: Path,
    metric: str,
    profile: str | None = None,
    names: Sequence[str] = (),
) -> History:
    """The figure `metric` of every run below `root` and every baseline, or of `names` alone.

    Raises `UsageError` where nothing was measured, of that profile or with that figure.
    """
    skipped: list[SkippedRun] = []
    if names:
        entries = [entry for name in names for entry in _named(name, root)]
    else:
        entries = _all(root, baselines, skipped)
    entries = _once(entries)
    _check(entries, metric, profile, root, skipped)
    chosen = [one for one in entries if profile in (None, one.profile)]
    groups: dict[str, list[_Entry]] = {}
    for entry in sorted(chosen, key=lambda one: (one.session.started_utc, one.session.name)):
        groups.setdefault(_key(entry), []).append(entry)
    return History(
        metric=metric,
        groups=tuple(_group(one, metric, _ambiguous(chosen)) for one in groups.values()),
        skipped=tuple(skipped),
    )


def _all(root: Path, baselines: Path, skipped: list[SkippedRun]) -> list[_Entry]:
    found: list[_Entry] = []
    places: list[tuple[Path, Callable[[Path, Path], list[_Entry]]]] = [
        (path.parent, _of_run) for path in sorted(root.glob("*/run.json"))
    ]
    places += [
        (path, _of_baseline)
        for folder in sorted(baselines.glob("*/"))
        for path in baseline_files(folder)
    ]
    for path, read in places:
        try:
            found += read(path, root)
        except DstuneError as error:
            skipped.append(SkippedRun(name=path.name, reason=str(error)))
    return found


def _named(name: str, root: Path) -> list[_Entry]:
    place = find(name, root)
    if place.kind == "baselines":
        return [entry for path in place.files for entry in _of_baseline(path, root)]
    if place.kind in ("run", "recommended"):
        return _of_place(place, root)
    return [_Entry(one, one.subject.tool) for one in read_sessions(name, root)]


def _of_run(path: Path, root: Path) -> list[_Entry]:
    if RunFolder(path).read_run().verb not in _VERBS:
        return []
    return _of_place(Place("run", path), root)


def _of_place(place: Place, root: Path) -> list[_Entry]:
    found = run_parts(place, root)
    profile = found.profile
    return [_Entry(session_of(found), found.run.verb, profile.name, describe_load(profile))]


def _of_baseline(path: Path, _root: Path) -> list[_Entry]:
    baseline = read_baseline(path)
    profile = restore_profile(baseline.profile, str(path))
    load = describe_load(profile)
    return [_Entry(baseline.session, "baseline", profile.name, load, is_accepted=True)]


def _once(entries: Sequence[_Entry]) -> list[_Entry]:
    """Each session once: a baseline whose run is still there is that run, accepted."""
    found: dict[tuple[str, str], _Entry] = {}
    for entry in entries:
        key = (entry.session.name, entry.session.started_utc)
        there = found.get(key)
        if there is None:
            found[key] = entry
        elif entry.is_accepted:
            found[key] = _Entry(there.session, there.verb, there.profile, there.load, True)
    return list(found.values())


def _check(
    entries: Sequence[_Entry],
    metric: str,
    profile: str | None,
    root: Path,
    skipped: Sequence[SkippedRun],
) -> None:
    """Raises `UsageError` where there is nothing to show."""
    if not entries:
        why = f" ({skipped[0].name}: {skipped[0].reason})" if skipped else ""
        raise UsageError(f"nothing was measured below {root}{why}: begin with dstune sweep PROFILE")
    known = sorted({one.profile for one in entries if one.profile})
    if profile is not None and profile not in known:
        raise UsageError(f"no run is of profile {profile}; there are {', '.join(known)}")
    figures = {name for one in entries for run in one.session.runs for name in run.figures}
    if metric not in figures:
        near = difflib.get_close_matches(metric, figures, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(figures))}"
        raise UsageError(f"no run has a figure called {metric}: {hint}")


def _key(entry: _Entry) -> str:
    """Equal for sessions that can be compared; a seed draws other prompts from the same load."""
    subject = entry.session.subject
    parts = (
        entry.profile,
        subject.tool,
        subject.model_digest or subject.model,
        subject.precision,
        subject.kv_cache_dtype,
        host_digest(subject.environment),
        _without_seed(subject.workload),
    )
    return json.dumps(parts, sort_keys=True, default=str)


def _without_seed(workload: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_seed(value) if isinstance(value, Mapping) else value
        for key, value in workload.items()
        if key != "seed"
    }


def _ambiguous(entries: Sequence[_Entry]) -> set[str]:
    """Names under which several sets of weights were measured."""
    digests: dict[str, set[str | None]] = {}
    for one in entries:
        subject = one.session.subject
        digests.setdefault(subject.model, set()).add(subject.model_digest)
    return {name for name, found in digests.items() if len(found) > 1}


def _group(members: Sequence[_Entry], metric: str, ambiguous: set[str]) -> HistoryGroup:
    rows = [_row(one, metric) for one in members]
    note = _mark_changes(rows)
    first, subject = members[0], members[0].session.subject
    is_told = subject.model in ambiguous and subject.model_digest is not None
    return HistoryGroup(
        profile=first.profile,
        model=f"{subject.model} ({subject.model_digest:.12})" if is_told else subject.model,
        precision=subject.precision or "",
        kv_cache_dtype=subject.kv_cache_dtype or "",
        load=first.load,
        host=host_digest(subject.environment) if subject.environment else "",
        machine=_machine(subject),
        rows=tuple(rows),
        note=note,
    )


def _mark_changes(rows: list[HistoryRow]) -> str:
    """Marks rows at which a new level begins; returns why none was looked for, if so."""
    from dstune.stats.change_points import MIN_RUNS, change_points  # brings numpy along

    counting = [(at, row.value.value) for at, row in enumerate(rows)
                if row.value.value is not None and not row.doubt]  # fmt: skip
    if len(counting) < MIN_RUNS:
        return f"a change of level shows from {MIN_RUNS} sessions on; {len(counting)} count so far"
    if any(value <= 0 for _, value in counting):
        return "no change of level is looked for, since some values are 0"
    for change in change_points([value for _, value in counting]):
        at = counting[change][0]
        rows[at] = rows[at].model_copy(update={"is_change": True})
    return ""


def _row(entry: _Entry, metric: str) -> HistoryRow:
    session = entry.session
    values = [run.figures[metric] for run in session.runs if metric in run.figures]
    return HistoryRow(
        name=session.name,
        verb=entry.verb,
        started_utc=session.started_utc,
        revision=session.subject.environment.get("git_revision"),
        configuration={
            key: value
            for key, value in session.subject.knobs.items()
            if key not in DEFAULTS or DEFAULTS[key] != value
        },
        value=_typical(values),
        num_runs=len(values),
        is_accepted=entry.is_accepted,
        doubt=_doubt(session),
    )


def _typical(values: Sequence[float]) -> Estimate:
    """The geometric mean with its interval, which stays above 0; a plain one where a value is 0."""
    if all(one > 0 for one in values):
        return ratio_estimate([(one, 1.0) for one in values])
    return mean_estimate(values)


def _doubt(session: Session) -> str:
    num_failed = sum(one.num_failed for one in session.runs)
    num = num_failed + sum(one.num_ok for one in session.runs)
    failed = [f"{num_failed} of {num} requests failed"] if num_failed else []
    return "; ".join([*failed, *doubts_of(session)])


def _machine(subject: Subject) -> str:
    """The machine in a few words; empty where the source does not tell."""
    cpu = subject.environment.get("cpu") or {}
    gpus = [str(one).split(",")[0] for one in subject.environment.get("gpus") or ()]
    if gpus:
        return ", ".join(gpus)
    cores = cpu.get("usable_cores")
    return f"{cores} cores of {cpu.get('model')}" if cores else str(cpu.get("model") or "")
