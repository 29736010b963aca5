"""Gate: figures that must not change at all, against an accepted set of them.

Such as kernels per decode step: no spread, so no statistics. A change that is meant is accepted
into the baseline file, in the same commit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dstune.errors import NotComparable, UsageError
from dstune.gate.baselines import BASELINES, first_problem
from dstune.measure.exact_figures import ExactChange, ExactFigures, ExactResult
from dstune.measure.files import write_atomically

SUFFIX = ".exact.json"
ACCEPT = "dstune gate accept FILE"
FORM = '{"kind": "exact", "name": NAME, "environment": {...}, "figures": {NAME: NUMBER, ...}}'


def is_exact(path: Path) -> bool:
    """Whether a file holds, or by its name should hold, exact figures."""
    if path.name.endswith(SUFFIX):
        return True  # also when it is missing or damaged: `read_exact` says so
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and document.get("kind") == "exact"


def read_exact(path: Path) -> ExactFigures:
    """The figures that a file holds; raises `UsageError` where it is missing or damaged."""
    try:
        data = path.read_bytes()
    except OSError as error:
        why = error.strerror
        raise UsageError(f"cannot read {path}: {why}; a baseline is made by: {ACCEPT}") from None
    try:
        return ExactFigures.model_validate_json(data)
    except ValidationError as error:
        why = "it is empty" if not data.strip() else first_problem(error)
        raise UsageError(f"{path} holds no exact figures: {why}; wanted: {FORM}") from None


def compare_exact(baseline: ExactFigures, candidate: ExactFigures) -> ExactResult:
    """What differs; raises `NotComparable` where the figures hold for other software."""
    _check_comparable(baseline, candidate)
    old, new = baseline.figures, candidate.figures
    shared = sorted(old.keys() & new.keys())
    changed = tuple(
        ExactChange(figure=name, baseline=old[name], candidate=new[name])
        for name in shared
        if old[name] != new[name]
    )
    return ExactResult(
        name=baseline.name,
        environment=baseline.environment,
        num_same=len(shared) - len(changed),
        changed=changed,
        added={name: new[name] for name in sorted(new.keys() - old.keys())},
        gone={name: old[name] for name in sorted(old.keys() - new.keys())},
    )


def _check_comparable(baseline: ExactFigures, candidate: ExactFigures) -> None:
    sides: list[dict[str, Any]] = [
        {"name": one.name, **one.environment} for one in (baseline, candidate)
    ]
    names = sorted(key for key in {*sides[0], *sides[1]} if sides[0].get(key) != sides[1].get(key))
    if names:
        differing = ", ".join(
            f"{key} {sides[0].get(key, 'unknown')} in the baseline, "
            f"{sides[1].get(key, 'unknown')} in the candidate"
            for key in names
        )
        raise NotComparable(
            f"exact figures of different things: {differing}; use the baseline's versions, or make "
            f"these the baseline with: {ACCEPT}"
        )


def accept_exact(candidate: ExactFigures, root: Path) -> Path:
    """Makes figures the baseline: baselines/<name>.exact.json below the folder of runs `root`.

    One figure per line, in order, so that a diff of two commits reads as a list of changes.
    """
    path = root / BASELINES / f"{candidate.name}{SUFFIX}"
    text = json.dumps(candidate.model_dump(mode="json"), indent=1, sort_keys=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode("utf-8") + b"\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    return path
