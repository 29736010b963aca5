"""The warmup-stable-decay schedule, whose end can be moved while training runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Schedule:
    """Learning-rate factor and sequence length by step; `steps` counts the decay too."""

    steps: int
    decay_steps: int
    warmup: int = 60
    long_share: float = 0.3

    def end_at(self, step: int, steps: int, factor: float | None = None) -> None:
        """Decay evenly from this step's rate, or the given factor, to zero at `steps`."""
        remaining = max(steps - step, 1)
        self.decay_steps = round(remaining / (factor or self.decay_factor(step)))
        self.steps = step + remaining

    def factor(self, step: int) -> float:
        """Share of the peak rate, from 0 to 1."""
        return min((step + 1) / self.warmup, self.decay_factor(step))

    def decay_factor(self, step: int) -> float:
        """The factor without the warmup."""
        return min(1.0, (self.steps - step) / self.decay_steps)

    def is_long(self, step: int) -> bool:
        """Whether this step trains on long sequences: the last share of the decay."""
        return self.steps - step <= self.decay_steps * self.long_share
