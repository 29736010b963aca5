"""Gate: a run becomes a committed baseline: its session, digests, and small raw samples.

Several accepted sessions of a profile stand side by side: together they tell how much sittings
differ, which a comparison with stored results rests on.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from dstune.errors import NotComparable, UsageError
from dstune.gate.baselines import (
    Baseline,
    baseline_files,
    digest_of,
    read_baseline,
    write_baseline,
)
from dstune.gate.comparable import check_runs, check_trusted, differing, forbidding
from dstune.gate.exact import FORM
from dstune.gate.places import find
from dstune.gate.sessions import RunParts, raw_samples, run_parts, session_of
from dstune.measure.comparison import Session
from dstune.measure.files import write_atomically
from dstune.measure.parquet import write_samples

LARGEST_BYTES = 1 << 20
"""Raw samples above this stay out of the repository."""


def accept(name: str, root: Path, baselines: Path) -> Path:
    """Makes a run a baseline, `baselines`/<profile>/<run>.json; accepting it twice changes nothing.

    Raises `UsageError` for what is no finished run of dstune and for a different baseline of the
    same name, `NotComparable` for failed requests, figures that cannot be trusted, and a run that
    does not belong beside the profile's other baselines.
    """
    place = find(name, root)
    if place.kind not in ("run", "recommended"):
        raise UsageError(
            f"{place.path} can not be accepted: it is no run folder of dstune, and holds no exact "
            f"figures, {FORM}"
        )
    found = run_parts(place, root)
    _check_ended(found)
    session = session_of(found)
    check_runs(session)
    check_trusted(session)
    # where it lay is of no use in another clone
    session = session.model_copy(update={"source": session.name})
    path = baselines / found.profile.name / f"{session.name}.json"
    raw = _digests(found)
    if path.exists():
        earlier = read_baseline(path)
        if earlier.session == session and earlier.raw == raw:
            return path
        raise UsageError(
            f"{path} holds another result of the same name: remove it first, or accept a run of "
            "another name"
        )
    _check_beside(path.parent, session)
    try:
        _write(path, found, session, raw)
    except OSError as error:
        raise UsageError(f"cannot write below {baselines}: {error.strerror}") from None
    return path


def _check_ended(found: RunParts) -> None:
    folder, run = found.folder, found.run
    if folder.is_locked():
        raise UsageError(f"{folder.path} is still being written: wait for it to end")
    if run.status in ("interrupted", "failed"):
        raise UsageError(
            f"{folder.path} is {run.status}: a part of a run is no baseline; let one end"
        )


def _check_beside(folder: Path, session: Session) -> None:
    """Raises `NotComparable` where the profile's other baselines are of something else."""
    for path in baseline_files(folder):
        earlier = read_baseline(path).session.subject
        wrong = forbidding(earlier, session.subject)
        knobs = differing(earlier.knobs, session.subject.knobs)
        wrong += [f"{key} {before} / {after}" for key, before, after in knobs
                  if not any(one.startswith(key) for one in wrong)]  # fmt: skip
        if wrong:
            raise NotComparable(
                f"{session.name} does not belong beside {path} (that one / this one): "
                f"{'; '.join(wrong)}; remove {path} to start anew"
            )


def _digests(found: RunParts) -> dict[str, str]:
    """Each file of raw samples, relative to the run folder, with its SHA-256."""
    trials = dict.fromkeys(load.trial.trial_id for loads in found.loads.values() for load in loads)
    paths = [found.folder.trial_folder(one) / "requests.parquet" for one in trials]
    return {
        one.relative_to(found.folder.path).as_posix(): digest_of(one)
        for one in paths
        if one.is_file()
    }


def _write(path: Path, found: RunParts, session: Session, raw: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    baseline = Baseline(session=session, profile=found.run.profile, raw=raw)
    data = _packed(found)
    beside = path.with_suffix(".parquet")
    if data is None:
        note = "the raw samples were not kept: the figures are those stored in the run"
        update = {"note": note}
    elif len(data) > LARGEST_BYTES:
        note = (
            f"the raw samples take {len(data) / LARGEST_BYTES:.1f} MiB, above "
            f"{LARGEST_BYTES >> 20} MiB: they stay in the run folder"
        )
        update = {"note": note}
    else:
        write_atomically(beside, data)
        update = {"samples": beside.name, "samples_digest": digest_of(beside)}
    write_baseline(path, baseline.model_copy(update=update))


def _packed(found: RunParts) -> bytes | None:
    """The raw samples of every load as one parquet file; None where some were not kept."""
    kept = [raw_samples(found.folder, load) for loads in found.loads.values() for load in loads]
    samples = [one for each in kept if each is not None for one in each]
    if any(each is None for each in kept):
        return None
    with tempfile.TemporaryDirectory(prefix="dstune-accept-") as folder:
        path = Path(folder) / "samples.parquet"
        write_samples(path, samples)
        return path.read_bytes()
