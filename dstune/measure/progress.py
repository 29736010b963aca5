"""Measure: how far a load has come, for those who watch; nothing is decided by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LoadProgress:
    """Counts so far over all load processes; latencies are those since the report before.

    `ttft_ms`, `tpot_ms` and `e2e_ms` have one entry for each normal request that ended ok.
    """

    planned: int
    finished: int
    sent: int = 0
    in_flight: int = 0
    ok: int = 0
    output_tokens: int = 0
    elapsed_s: float = 0.0
    errors: Mapping[str, int] = field(default_factory=dict)  # `SampleError` -> normal requests
    hostile: int = 0  # hostile requests that have ended
    hostile_as_expected: int = 0
    ttft_ms: tuple[float | None, ...] = ()
    tpot_ms: tuple[float | None, ...] = ()
    e2e_ms: tuple[float | None, ...] = ()
    itl_ms: tuple[float, ...] = ()
