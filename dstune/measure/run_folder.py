"""Measure: the run folder, written so that a kill loses at most the trial in flight.

<root>/<UTC>-<verb>-<profile>/
    run.json                      what was asked, where, and how it ended
    trials.jsonl                  one line per finished trial, append-only
    trials/<trial id>/            requests.parquet, steps.parquet, vllm_bench.json
    recommended.yaml
    target.log
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from dstune.errors import DstuneError, UsageError
from dstune.measure.comparison import GateResult
from dstune.measure.files import append_line, whole_lines, write_atomically
from dstune.measure.parquet import read_samples, write_samples, write_steps
from dstune.measure.record import Recommendation, Run, TrialRecord
from dstune.measure.sample import Sample, StepSample

RECOMMENDED = "recommended.yaml"
GATE = "gate.json"


class RunFolder:
    """One run on disk; a writer holds its lock."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, root: Path, verb: str, profile: str, now: datetime | None = None) -> RunFolder:
        """A new, empty folder below `root`; raises `UsageError` where none can be made."""
        moment = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
        for attempt in range(1, 100):
            suffix = f"-{attempt}" if attempt > 1 else ""
            path = root / f"{moment}-{verb}-{profile}{suffix}"
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as error:
                raise UsageError(f"cannot write below {root}: {error.strerror}") from None
            return cls(path)
        raise UsageError(f"{root} already holds 99 runs of this second")

    @classmethod
    def find(cls, name: str, root: Path) -> RunFolder:
        """The run that a person names: a folder, or its name below `root`."""
        for path in (Path(name), root / name):
            if (path / "run.json").is_file():
                return cls(path)
        raise UsageError(f"no run called {name}: neither a folder with a run.json nor in {root}")

    @classmethod
    def recommended(cls, name: str, root: Path) -> Recommendation:
        """What a run recommends, by its name, its folder or its recommended.yaml itself.

        Raises `UsageError` where there is no such run, or one that recommended nothing.
        """
        path = Path(name)
        is_file = path.name == RECOMMENDED and path.is_file()
        folder = cls(path.parent) if is_file else cls.find(name, root)
        found = folder.recommendation()
        if found is None:
            raise UsageError(f"{folder.path} holds no {RECOMMENDED}: its sweep recommended nothing")
        return found

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps a second process from writing this run; the system frees it when we die."""
        with open(self.path / ".lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                message = f"{self.path} is being written by another dstune that still runs"
                raise UsageError(message) from None
            yield

    def is_locked(self) -> bool:
        """Whether some process writes this run now."""
        try:
            with open(self.path / ".lock") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    @property
    def log_path(self) -> Path:
        """Where the target writes its log."""
        return self.path / "target.log"

    def write_run(self, run: Run) -> None:
        """Replaces run.json."""
        self.write_json("run.json", run.model_dump(mode="json"))

    def read_run(self) -> Run:
        """run.json; raises `DstuneError` when it is damaged or of another version."""
        path = self.path / "run.json"
        try:
            return Run.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise DstuneError(f"{path} is damaged or of another version: {_why(error)}") from None

    def append_trial(self, trial: TrialRecord) -> None:
        """Adds a finished trial; its samples are written before."""
        append_line(self.path / "trials.jsonl", trial.model_dump_json())

    def trials(self) -> list[TrialRecord]:
        """Finished trials in the order in which they ended."""
        path = self.path / "trials.jsonl"
        found = []
        for number, line in enumerate(whole_lines(path), start=1):
            try:
                found.append(TrialRecord.model_validate_json(line))
            except ValidationError as error:
                raise DstuneError(f"{path}:{number} is damaged: {_why(error)}") from None
        return found

    def recommendation(self) -> Recommendation | None:
        """recommended.yaml, if the run made one."""
        path = self.path / RECOMMENDED
        if not path.is_file():
            return None
        try:
            return Recommendation.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        except (OSError, ValidationError, yaml.YAMLError) as error:
            raise DstuneError(f"{path} is damaged: {str(error).splitlines()[0]}") from None

    def gate_result(self) -> GateResult | None:
        """gate.json, once a gate has come to a verdict; raises `DstuneError` for a damaged one."""
        path = self.path / GATE
        if not path.is_file():
            return None
        try:
            return GateResult.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise DstuneError(f"{path} is damaged: {_why(error)}") from None

    def write_samples(
        self, trial_id: str, samples: Sequence[Sample], steps: Sequence[StepSample]
    ) -> None:
        """The raw samples of a trial, all repetitions in one file."""
        folder = self.trial_folder(trial_id)
        folder.mkdir(parents=True, exist_ok=True)
        write_samples(folder / "requests.parquet", samples)
        if steps:
            write_steps(folder / "steps.parquet", steps)

    def samples(self, trial_id: str) -> list[Sample]:
        """The raw samples of a trial."""
        return read_samples(self.trial_folder(trial_id) / "requests.parquet")

    def trial_folder(self, trial_id: str) -> Path:
        """Where a trial's samples lie."""
        return self.path / "trials" / trial_id

    def write_json(self, name: str, data: Mapping[str, Any]) -> None:
        """Writes a JSON file below the run folder; NaN is refused, since no reader takes it."""
        text = json.dumps(data, allow_nan=False)
        write_atomically(self.path / name, text.encode("utf-8") + b"\n")

    def write_text(self, name: str, text: str) -> None:
        """Writes a text file below the run folder."""
        write_atomically(self.path / name, text.encode("utf-8"))

    def clean(self) -> None:
        """Removes what a killed writer left half-written."""
        for left in self.path.rglob(".*.tmp"):
            left.unlink(missing_ok=True)


def _why(error: Exception) -> str:
    """The first thing that is wrong, in one line."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{where}: {first['msg']}" if where else first["msg"]
    return str(error).split("\n")[0]
