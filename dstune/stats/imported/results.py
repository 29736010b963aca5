"""Stats, imported: a folder of one tool's results, read as a session of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dstune.errors import NotComparable, UsageError
from dstune.measure.comparison import MEAN_TOKENS, RunFigures, Session, Subject
from dstune.stats.imported import aiperf, guidellm, sglang, vllm
from dstune.stats.imported.documents import Document, documents, levels
from dstune.stats.imported.run import ImportedRun


@dataclass(frozen=True)
class Reader:
    """How one tool's documents are known, and read."""

    tool: str
    is_its: Callable[[Document], bool]
    runs: Callable[[Sequence[Document]], list[ImportedRun]]


READERS = (
    Reader(vllm.TOOL, vllm.is_vllm, vllm.vllm_runs),
    Reader(sglang.TOOL, sglang.is_sglang, sglang.sglang_runs),
    Reader(guidellm.TOOL, guidellm.is_guidellm, guidellm.guidellm_runs),
    Reader(aiperf.TOOL, aiperf.is_aiperf, aiperf.aiperf_runs),
)


def read_results(path: Path) -> Session:
    """The runs that another tool left in a file or folder, in the order of their making.

    A tool is known by what a file holds, never by its name; what is no result is passed over. Of
    a folder that holds none itself, the nearest subfolders that do are read, all together.

    Raises UsageError where there is no result, NotComparable where runs are of several tools,
    models or loads, and UsageError for a file that is damaged.
    """
    reader, found = _find(path)
    runs = _in_order(reader.runs(found))
    _agree(path, "model", {one.place: one.model for one in runs if one.model})
    settings = _settings(path, runs)
    return Session(
        name=path.resolve().name,
        source=str(path),
        started_utc=min((one.figures.started_utc for one in runs), default=""),
        subject=Subject(
            tool=reader.tool,
            model=next((one.model for one in runs if one.model), ""),
            workload={**settings, **_shared_digests(runs), **_lengths(runs)},
        ),
        runs=tuple(_named(one, path) for one in runs),
    )


def _find(path: Path) -> tuple[Reader, list[Document]]:
    if not path.exists():
        raise UsageError(f"there is no {path}")
    num_files = 0
    for files in levels(path):
        num_files += len(files)
        known = [(one, reader) for one in documents(files) for reader in READERS
                 if reader.is_its(one)]  # fmt: skip
        if not known:
            continue
        first, reader = known[0]
        for one, other in known:
            if other is not reader:
                raise NotComparable(
                    f"{path} holds results of several tools: {first.path} of {reader.tool}, "
                    f"{one.path} of {other.tool}"
                )
        return reader, [one for one, _ in known]
    if not num_files:
        raise UsageError(f"{path} is empty: it holds no result")
    tools = ", ".join(reader.tool for reader in READERS)
    raise UsageError(f"{path} holds no result of a known tool ({tools})")


def _in_order(runs: list[ImportedRun]) -> list[ImportedRun]:
    """By time where every run tells it, else as they lie in the files, by name and line."""
    times = {one.place: one.made for one in runs}
    if all(made is not None for made in times.values()):
        return sorted(runs, key=lambda one: times[one.place] or 0.0)
    return runs


def _agree(path: Path, what: str, told: dict[str, Any]) -> None:
    places = iter(told.items())
    first = next(places, None)
    for place, value in places:
        if first is not None and value != first[1]:
            raise NotComparable(
                f"the runs in {path} do not belong together: {what} is {first[1]} in {first[0]}, "
                f"{value} in {place}"
            )


def _settings(path: Path, runs: Sequence[ImportedRun]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for one in runs for name in one.settings):
        told = {one.place: one.settings[name] for one in runs if name in one.settings}
        _agree(path, name, told)
        found[name] = next(iter(told.values()))
    return found


def _lengths(runs: Sequence[ImportedRun]) -> dict[str, float]:
    """Tokens of a request, over all runs that tell them."""
    told = [one.mean_tokens for one in runs if one.mean_tokens is not None]
    if not told:
        return {}
    prompts, outputs = (sum(values) / len(told) for values in zip(*told, strict=True))
    return {f"prompt{MEAN_TOKENS}": prompts, f"output{MEAN_TOKENS}": outputs}


def _shared_digests(runs: Sequence[ImportedRun]) -> dict[str, str]:
    """Lengths that are the same in every run.

    Where each run drew its own they tell nothing, nor where requests were lost on the way.
    """
    found: dict[str, str] = {}
    if any(one.figures.num_failed for one in runs):
        return found
    for name in ("input_lens", "output_lens"):
        values = {one.digests.get(name) for one in runs}
        value = next(iter(values))
        if len(values) == 1 and value is not None:
            found[f"{name}_digest"] = value
    return found


def _named(run: ImportedRun, path: Path) -> RunFigures:
    """By the file within the folder; a file read alone by its name."""
    folder = path if path.is_dir() else path.parent
    return run.figures.model_copy(update={"name": run.place.removeprefix(f"{folder}/")})
