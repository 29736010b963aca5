"""Gate: the committed baseline as a file: one session, what a re-run needs, and digests.

<root>/baselines/<profile>/<run>.json, and beside it the raw samples as <run>.parquet where they
are small. Small enough for git, and checked whenever it is read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from dstune.errors import UsageError
from dstune.measure.comparison import Session
from dstune.measure.files import write_atomically
from dstune.measure.record import SCHEMA_VERSION, Record

BASELINES = "baselines"
"""The folder below the runs' root."""
EXACT = ".exact.json"
"""How the names of exact figures end, which lie there too and are compared in another way."""
_OURS = (b'"schema_version"', b'"subject"')
_HEAD_BYTES = 1 << 16


class Baseline(Record):
    """An accepted session; `digest` is of all other fields, so that an edit shows."""

    schema_version: Literal[1] = 1
    session: Session
    profile: dict[str, Any]  # resolved
    raw: dict[str, str]  # file of the run folder -> SHA-256
    samples: str = ""  # the raw samples' file beside this one; empty: `note` says why
    samples_digest: str = ""
    note: str = ""
    digest: str = ""

    def signed(self) -> Baseline:
        """The same with its digest filled in."""
        return self.model_copy(update={"digest": self.expected_digest()})

    def expected_digest(self) -> str:
        """SHA-256 of everything but the digest itself."""
        plain = self.model_dump(mode="json", exclude={"digest"})
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Writes it signed, one line per field, so that a diff can be read."""
    text = json.dumps(baseline.signed().model_dump(mode="json"), indent=1, allow_nan=False)
    write_atomically(path, text.encode() + b"\n")


def read_baseline(path: Path) -> Baseline:
    """Reads and verifies one; raises `UsageError` that names the file and what is wrong."""
    data = read_object(path)
    try:
        baseline = Baseline.model_validate(data)
    except ValidationError as error:
        raise damaged(path, first_problem(error)) from None
    if baseline.digest != baseline.expected_digest():
        raise damaged(path, "it was changed after it was accepted (its digest does not hold)")
    if baseline.samples:
        beside = path.with_name(baseline.samples)
        if not beside.is_file():
            raise damaged(path, f"its raw samples {beside.name} are missing")
        if digest_of(beside) != baseline.samples_digest:
            raise damaged(path, f"its raw samples {beside.name} are not those that were accepted")
    return baseline


def read_session_file(path: Path) -> Session:
    """A session as JSON, or that of a baseline; raises `UsageError` for a damaged one."""
    data = read_object(path)
    if "session" in data:
        return read_stored(path)
    try:
        return Session.model_validate(data)
    except ValidationError as error:
        raise damaged(path, first_problem(error)) from None


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object of this schema version; raises `UsageError` for anything else."""
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        why = "it is empty" if path.stat().st_size == 0 else f"it is no JSON ({error})"
        raise damaged(path, why) from None
    if not isinstance(data, dict):
        raise damaged(path, "it is no JSON object")
    check_version(path, data)
    return data


def read_stored(path: Path) -> Session:
    """The session of a baseline, which from here on was read from that file."""
    return read_baseline(path).session.model_copy(update={"source": str(path)})


def check_version(path: Path, data: Mapping[str, Any]) -> None:
    """Raises `UsageError` for a file of another schema version."""
    version = data.get("schema_version")
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"{path} is of schema version {version}, this dstune reads {SCHEMA_VERSION}: "
            "use the dstune that wrote it, or measure again"
        )


def is_ours(path: Path) -> bool:
    """Whether a file looks like a session or a baseline, also a damaged one."""
    if path.suffix != ".json" or not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    return all(word in head for word in _OURS)


def baseline_files(folder: Path) -> list[Path]:
    """The baselines that lie in a folder, by name."""
    return sorted(
        one
        for one in folder.glob("*.json")
        if not one.name.startswith(".") and not one.name.endswith(EXACT)
    )


def digest_of(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def damaged(path: Path, why: str) -> UsageError:
    """The error of a committed file that does not hold what was accepted.

    Exit code 2, like a corrupt model's: neither the target nor dstune failed. What the user
    named, a file that merges and hands may touch, is not usable as it is.
    """
    return UsageError(
        f"{path} is damaged: {why}; restore it (git checkout -- {path}), or remove it and accept "
        "the run again"
    )


def first_problem(error: ValidationError) -> str:
    """The first thing that is wrong, in one line."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]
