"""Gate: where the result lies that a person names, and of which sort it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dstune.errors import UsageError
from dstune.gate.baselines import BASELINES, EXACT, baseline_files, is_ours, read_object
from dstune.measure.run_folder import GATE, RECOMMENDED

_RUN = "run.json"
_IN_A_RUN = (_RUN, GATE, "trials.jsonl")


@dataclass(frozen=True)
class Place:
    """A named result: `files` are those of baselines and sessions."""

    kind: Literal["run", "recommended", "baselines", "sessions", "other"]
    path: Path
    files: tuple[Path, ...] = ()


def find(name: str, root: Path) -> Place:
    """Where a named result lies; raises `UsageError` where there is none."""
    if not name.strip():
        raise UsageError("an empty name names no result: give a run, a baseline or a file")
    tried = (Path(name), root / name)
    for path in tried:
        if (path / _RUN).is_file():
            return Place("run", path)
        if path.name in _IN_A_RUN and (path.parent / _RUN).is_file():
            return Place("run", path.parent)
    home = root / BASELINES
    if tried[0].exists():
        return _of_path(tried[0], home)
    if files := _baselines_called(name, home):
        return Place("baselines", home, tuple(files))
    if tried[1].exists():
        return _of_path(tried[1], home)
    runs = sorted(one.parent.name for one in root.glob(f"*/{_RUN}"))
    last = f"; the latest run there is {runs[-1]}" if runs else ""
    raise UsageError(
        f"nothing is called {name}: neither a file or folder, nor a run in {root}, nor a baseline "
        f"in {home}{last}"
    )


def _baselines_called(name: str, home: Path) -> list[Path]:
    """Those of a profile, one as profile/run, or one by its run's name."""
    bare = name.removesuffix(".json")
    if Path(name).is_absolute() or ".." in Path(name).parts:
        return []
    if (home / bare).is_dir():
        return baseline_files(home / bare)
    exact = home / f"{bare}.json"
    return [exact] if exact.is_file() else sorted(home.glob(f"*/{_literal(bare)}.json"))


def _literal(text: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in text)


def _of_path(path: Path, home: Path) -> Place:
    return _of_folder(path, home) if path.is_dir() else _of_file(path, home)


def _of_file(path: Path, home: Path) -> Place:
    if path.suffix in (".yaml", ".yml"):
        return Place("recommended", path)
    if path.name.endswith(EXACT):
        raise UsageError(f"{path} holds exact figures: compare it with another file of them")
    if path.suffix == ".json" and _is_below(path, home):
        return Place("baselines", path, (path,))
    if not path.is_file():
        raise UsageError(f"{path} is no regular file")
    if path.stat().st_size == 0:
        raise UsageError(f"{path} is empty: there is nothing to compare")
    if is_ours(path):
        return _ours(path, (path,))
    return Place("other", path)


def _of_folder(path: Path, home: Path) -> Place:
    inside = sorted(one for one in path.iterdir() if not one.name.startswith("."))
    if not inside:
        raise UsageError(f"{path} is empty: there is nothing to compare")
    if (path / RECOMMENDED).is_file():
        return Place("recommended", path / RECOMMENDED)
    if (path / "trials.jsonl").is_file():
        raise UsageError(f"{path} is no whole run folder, its run.json is missing: restore it")
    if files := [one for one in baseline_files(path) if is_ours(one) or _is_below(path, home)]:
        return _ours(path, tuple(files))
    runs = [one.name for one in inside if (one / _RUN).is_file()]
    if runs:
        raise UsageError(f"{path} holds {len(runs)} runs: name one of them, such as {runs[-1]}")
    if held := [one.name for one in inside if one.is_dir() and any(map(is_ours, one.iterdir()))]:
        raise UsageError(f"{path} holds baselines of several profiles: name one, such as {held[0]}")
    return Place("other", path)


def _ours(path: Path, files: tuple[Path, ...]) -> Place:
    """Baselines or bare sessions, as the first of them is."""
    is_baseline = "session" in read_object(files[0])
    return Place("baselines" if is_baseline else "sessions", path, files)


def _is_below(path: Path, home: Path) -> bool:
    return path.resolve().is_relative_to(home.resolve())
