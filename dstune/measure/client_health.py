"""Measure: how well a load process kept up, the evidence for trusting its stamps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ClientHealth:
    """One load process during one run."""

    process: int
    cpu_s: float
    wall_s: float
    heartbeat_lag_p50_ns: int  # lateness of a 5 ms heartbeat in the client's own loop
    heartbeat_lag_p99_ns: int
    heartbeat_lag_max_ns: int
    has_kernel_stamps: bool  # receive times are the kernel's, not the loop's

    @property
    def cpu_share(self) -> float:
        """Share of one core that it used."""
        return self.cpu_s / self.wall_s if self.wall_s > 0 else 0.0
