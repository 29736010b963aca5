"""Gate: whether two results may be compared at all, and whether one can be measured again here.

What differs forbids it; what one of the two does not tell is noted. The version of dstune and its
revision may differ: to compare those is what a gate is for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dstune.errors import NotComparable, UsageError
from dstune.gate.sessions import Origin
from dstune.measure.comparison import MEAN_TOKENS, Session, Subject
from dstune.measure.record import VOIDING

_LONGEST = 60  # characters of one value in a message
_NOTED = ("seed", "backend")  # other prompts of the same load; another way of asking for it
_ABOUT = 0.05  # by which the mean lengths of two loads may differ
_KINDS = ("kind", "distribution")
_OWN = "dstune"
_CPU = (("CPU", "model"), ("CPU features", "flags_digest"), ("usable cores", "usable_cores"),
        ("cores", "cores"))  # fmt: skip


@dataclass
class _Found:
    """Differences and notes of two sides, in the order in which they were looked for."""

    forbidding: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    untold: dict[str, list[str]] = field(default_factory=dict)  # side -> what it does not tell

    def compare(self, label: str, before: Any, after: Any) -> None:
        """Two values; None, "" or an empty mapping is one that is not told."""
        sides = [(side, one) for side, one in (("baseline", before), ("candidate", after))
                 if one is None or one == "" or one == {}]  # fmt: skip
        if not sides and before != after:
            self.forbidding.append(f"{label} {_brief(before)} / {_brief(after)}")
        if len(sides) == 1:
            self.untold.setdefault(sides[0][0], []).append(label)

    def note(self, label: str, before: Any, after: Any) -> None:
        """Two values that may differ, and are told where they do."""
        if before != after:
            self.notes.append(f"{label} {_brief(before)} / {_brief(after)}")

    def told(self) -> tuple[str, ...]:
        """Every note, those of what is not told last."""
        unknown = (f"the {side} does not tell its {', '.join(labels)}: taken to be equal"
                   for side, labels in self.untold.items())  # fmt: skip
        return (*self.notes, *unknown)


def check_comparable(baseline: Subject, candidate: Subject) -> tuple[str, ...]:
    """What to know about a comparison; raises `NotComparable` listing all that forbids it."""
    found = _compare(baseline, candidate)
    if found.forbidding:
        raise NotComparable(
            f"not comparable (baseline / candidate): {'; '.join(found.forbidding)}; measure both "
            "alike"
        )
    return found.told()


def forbidding(baseline: Subject, candidate: Subject) -> list[str]:
    """In what two subjects differ that forbids to compare them, with both values."""
    return _compare(baseline, candidate).forbidding


def _compare(baseline: Subject, candidate: Subject) -> _Found:
    found = _Found()
    found.compare("tool", baseline.tool, candidate.tool)
    _compare_models(baseline, candidate, found)
    found.compare("precision", baseline.precision, candidate.precision)
    found.compare("KV dtype", baseline.kv_cache_dtype, candidate.kv_cache_dtype)
    _compare_workloads(baseline.workload, candidate.workload, found)
    _compare_machines(baseline.environment, candidate.environment, found)
    _compare_versions(baseline.environment, candidate.environment, found)
    found.note("code", _code_of(baseline.environment), _code_of(candidate.environment))
    return found


def check_runs(session: Session) -> None:
    """Raises `NotComparable` where requests failed or none was answered, `UsageError` for no run.

    The fastest answer to a request is to refuse it, so figures of a load with failures are not
    held against those of one without.
    """
    if not session.runs:
        raise UsageError(f"{session.source} holds no run: there is nothing to compare")
    num_ok = sum(one.num_ok for one in session.runs)
    num_failed = sum(one.num_failed for one in session.runs)
    num = num_ok + num_failed
    if not num_ok:
        said = f"all {num} requests of {session.name} failed" if num else \
            f"no request of {session.name} was answered"  # fmt: skip
        raise NotComparable(f"{said}: not comparable; find out why, then measure again")
    if num_failed:
        runs = [one.name for one in session.runs if one.num_failed]
        raise NotComparable(
            f"{num_failed} of {num} requests of {session.name} failed (in {', '.join(runs)}): not "
            "comparable; find out why, then measure again"
        )
    empty = [one.name for one in session.runs if not one.num_ok]
    if empty:
        raise NotComparable(
            f"no request was answered in {', '.join(empty)} of {session.name}: not comparable; "
            "measure again"
        )


def check_trusted(session: Session) -> None:
    """Raises `NotComparable` where a remark voids the figures of a run."""
    doubts = doubts_of(session)
    if doubts:
        raise NotComparable(
            f"{session.name} cannot be trusted ({'; '.join(doubts)}): measure it again"
        )


def doubts_of(session: Session) -> list[str]:
    """What voids the figures of its runs, each said once."""
    said = (f"{remark.code}: {remark.message}" for one in session.runs for remark in one.remarks
            if remark.code in VOIDING)  # fmt: skip
    return list(dict.fromkeys(said))


def check_reproducible(origin: Origin, environment: Mapping[str, Any]) -> tuple[str, ...]:
    """What changed on this machine since a result; raises `NotComparable` on another machine.

    A re-run runs both sides on what is installed now, so versions and drivers are only noted.
    """
    if not origin.environment:
        return ()  # a profile: nothing was measured yet
    found, changed = _Found(), _Found()
    _compare_machines(origin.environment, environment, found, driver=changed)
    _compare_versions(origin.environment, environment, changed)
    if found.forbidding:
        raise NotComparable(
            f"{origin.run} was measured on another machine (then / now): "
            f"{'; '.join(found.forbidding)}: run the gate on that machine, or measure a baseline "
            "on this one"
        )
    notes = [f"since {origin.run} (then / now): {one}" for one in changed.forbidding]
    if found.untold or changed.untold:
        notes.append(f"{origin.run} does not tell all of its environment: taken to be equal")
    return tuple(notes)


def machine_of(environment: Mapping[str, Any]) -> dict[str, Any]:
    """What decides speed and does not change with an update: GPUs, CPU and cores."""
    cpu = environment.get("cpu") or {}
    names, memories, _ = _gpus(environment)
    return {
        "gpus": None if names is None else [*names, *(memories or ())],
        **{key: cpu.get(key) for _, key in _CPU},
    }


def host_digest(environment: Mapping[str, Any]) -> str:
    """A short name of a machine, the same for every result that was measured on it."""
    plain = json.dumps(machine_of(environment), sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()[:12]


def differing(
    before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = ""
) -> list[tuple[str, Any, Any]]:
    """The dotted keys, known to both, whose values differ, with both values.

    Of two different kinds of a thing the kind alone: what each then needs differs by itself.
    """
    found: list[tuple[str, Any, Any]] = []
    kinds = [key for key in _KINDS if before.get(key) != after.get(key)]
    for key in kinds or before:
        if key not in before or key not in after or before[key] == after[key]:
            continue
        mine, theirs = before[key], after[key]
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            found += differing(mine, theirs, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", mine, theirs))
    return found


def _compare_models(baseline: Subject, candidate: Subject, found: _Found) -> None:
    """By digest where both tell it: a folder's path says nothing about its weights."""
    if baseline.model_digest and candidate.model_digest:
        if baseline.model_digest == candidate.model_digest:
            found.note("model", baseline.model, candidate.model)
            return
        found.compare("model", baseline.model, candidate.model)
        digests = (baseline.model_digest[:12], candidate.model_digest[:12])
        found.compare("model digest", *digests)
        return
    found.compare("model", baseline.model, candidate.model)
    found.compare("model digest", baseline.model_digest, candidate.model_digest)


def _compare_workloads(
    baseline: Mapping[str, Any], candidate: Mapping[str, Any], found: _Found
) -> None:
    if not baseline or not candidate:
        found.compare("workload", dict(baseline), dict(candidate))
        return
    for key, before, after in differing(baseline, candidate):
        # a value of None says that there is none: no rate, no duration
        told = "none" if before is None else before, "none" if after is None else after
        label = key if key.startswith("workload.") else f"workload.{key}"
        if key.endswith(MEAN_TOKENS) and abs(before - after) <= _ABOUT * max(before, after):
            continue
        if key.rpartition(".")[2] in _NOTED:
            found.note(label, *told)
        else:
            found.compare(label, *told)
    for side, mine, theirs in (("baseline", baseline, candidate),
                               ("candidate", candidate, baseline)):  # fmt: skip
        if lacking := _lacking(mine, theirs):
            found.untold.setdefault(side, []).extend(lacking)


def _lacking(mine: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted keys that only `theirs` has."""
    found = []
    for key, value in theirs.items():
        if key not in mine:
            found.append(f"{prefix}{key}")
        elif isinstance(value, Mapping) and isinstance(mine[key], Mapping):
            found += _lacking(mine[key], value, f"{prefix}{key}.")
    return found


def _compare_machines(
    baseline: Mapping[str, Any],
    candidate: Mapping[str, Any],
    found: _Found,
    driver: _Found | None = None,
) -> None:
    """GPUs and CPU; the GPUs' driver into a collection of its own, where one is given."""
    if not baseline or not candidate:
        found.compare("environment", dict(baseline), dict(candidate))
        return
    before, after = _gpus(baseline), _gpus(candidate)
    for label, mine, theirs, kept in zip(
        ("GPU", "GPU memory", "GPU driver"), before, after, (found, found, driver or found),
        strict=True,
    ):  # fmt: skip
        if label == "GPU" or (before[0] and before[0] == after[0]):
            kept.compare(label, _listed(mine), _listed(theirs))
    cpus = (baseline.get("cpu") or {}, candidate.get("cpu") or {})
    for label, key in _CPU:
        found.compare(label, cpus[0].get(key), cpus[1].get(key))


def _gpus(
    environment: Mapping[str, Any],
) -> tuple[list[str] | None, list[str] | None, list[str] | None]:
    """Names, memories and drivers of the GPUs; None where they are not told.

    The lines of `fingerprint`: name, memory, driver.
    """
    if environment.get("gpus") is None:
        return None, None, None
    parts = [[one.strip() for one in str(line).split(",")] for line in environment["gpus"]]
    names = [one[0] for one in parts]
    memories = [one[1] for one in parts if len(one) > 1] or None
    return names, memories, [one[2] for one in parts if len(one) > 2] or None


def _listed(values: list[str] | None) -> str | None:
    """GPUs in words: equal ones counted."""
    if values is None:
        return None
    counts = {one: values.count(one) for one in values}
    each = (one if num == 1 else f"{num} x {one}" for one, num in counts.items())
    return ", ".join(each) or "none"


def _compare_versions(
    baseline: Mapping[str, Any], candidate: Mapping[str, Any], found: _Found
) -> None:
    """Of every library; dstune's own is in the note about the code."""
    if not baseline or not candidate:
        return  # the environment as a whole is told to be unknown
    mine, theirs = ({name: one for name, one in (side.get("versions") or {}).items()
                     if name != _OWN} for side in (baseline, candidate))  # fmt: skip
    if not mine or not theirs:
        found.compare("versions", mine, theirs)
        return
    for name in sorted({*mine, *theirs}):
        found.compare(f"version of {name}", mine.get(name), theirs.get(name))
    found.note("Python", baseline.get("python"), candidate.get("python"))
    found.note("system", baseline.get("os"), candidate.get("os"))


def _code_of(environment: Mapping[str, Any]) -> str:
    version = (environment.get("versions") or {}).get(_OWN)
    revision = environment.get("git_revision")
    told = [f"{_OWN} {version}"] if version else []
    return " ".join([*told, f"at {revision[:12]}"] if revision else told) or "unknown"


def _brief(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
