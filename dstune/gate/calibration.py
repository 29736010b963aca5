"""Gate: what this host's noise is. The same thing against itself, and how often that alarms."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dstune.errors import DstuneError
from dstune.gate.comparable import host_digest
from dstune.gate.plan import GatePlan
from dstune.gate.sessions import workload_of
from dstune.gate.sides import Side
from dstune.measure.comparison import Calibration, CalibrationMetric, GateResult, Thresholds
from dstune.measure.files import write_atomically
from dstune.measure.record import Claim
from dstune.stats.paired import gated_for, pair_differences, power

FOLDER = "calibration"


def path_of(side: Side, environment: Mapping[str, Any], root: Path) -> Path:
    """Where what is known of this host, model and load is kept."""
    return root / FOLDER / f"{side.profile.name}-{digest_of(side, environment)}.json"


def digest_of(side: Side, environment: Mapping[str, Any]) -> str:
    """Tells hosts, models and loads apart whose noise differs."""
    kept = {
        "host": host_digest(environment),
        "model": side.profile.model,
        "precision": side.knobs.get("precision"),
        "workload": workload_of(side.profile, has_hostile=False),
    }
    text = json.dumps(kept, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def known(path: Path) -> Calibration | None:
    """What was found so far; raises `DstuneError` for a damaged file."""
    try:
        return Calibration.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        raise DstuneError(f"{path} is damaged: remove it and calibrate again") from None


def learn(
    side: Side, result: GateResult, environment: Mapping[str, Any], root: Path
) -> Calibration:
    """Adds one comparison of a side with itself to what is known, on disk."""
    path = path_of(side, environment, root)
    before = known(path)
    runs = (*result.baseline.runs, *result.candidate.runs)
    added = pair_differences(result.baseline.runs, result.candidate.runs,
                             gated_for(GatePlan().metrics, runs))  # fmt: skip
    differences = dict(before.differences) if before else {}
    for metric, values in added.items():
        differences[metric] = (*differences.get(metric, ()), *values)
    found = Calibration(
        host=host_digest(environment),
        profile=side.profile.name,
        updated_utc=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        num_comparisons=(before.num_comparisons if before else 0) + 1,
        num_false_alarms=(before.num_false_alarms if before else 0) + (result.claim is Claim.FAIL),
        metrics={
            metric: CalibrationMetric(pair_sd=_spread(values), num_pairs=len(values))
            for metric, values in differences.items()
        },
        differences=differences,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, found.model_dump_json(indent=1).encode() + b"\n")
    return found


def foresight(calibration: Calibration | None, thresholds: Thresholds) -> str:
    """What a gate can see on this host, in one line."""
    if calibration is None or not calibration.metrics:
        return "what this host's noise lets a gate see is not known: dstune gate calibrate tells"
    num = len(calibration.metrics)
    latencies = {name: one for name, one in calibration.metrics.items() if name.endswith("_ms")}
    quietest = min((latencies or calibration.metrics).values(), key=lambda one: one.pair_sd)
    seen = ", ".join(
        f"{slowdown:.0%} in {power(quietest.pair_sd, slowdown, num, thresholds):.0%}"
        for slowdown in (0.05, 0.10, 0.20)
    )
    return (
        f"on this host two runs of the same thing differ by {quietest.pair_sd:.1%} in the "
        f"quietest latency (pair sd, {quietest.num_pairs} pairs): it alone shows a slowdown of "
        f"{seen} of gates"
    )


def _spread(differences: Sequence[float]) -> float:
    """Root of the mean square: both halves are the same thing, so the true mean is known, 0."""
    return math.sqrt(math.fsum(one * one for one in differences) / len(differences))
