"""What every target can do, so that a sweep is written once and tested with a fake one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from dstune.knobs import KnobValue, Restart
from dstune.load.plan import LoadPlan
from dstune.measure.client_health import ClientHealth
from dstune.measure.progress import LoadProgress
from dstune.measure.sample import Sample, StepSample
from dstune.measure.server_metrics import ServerMetrics


@dataclass(frozen=True)
class Configured:
    """What applying a configuration took, and what is in force now."""

    restart: Restart | None  # None: nothing had to change
    seconds: float
    effective: Mapping[str, KnobValue]  # every knob, with what auto and unset became
    model: Mapping[str, object] = field(default_factory=dict)  # name, digest, num_parameters, ...


@dataclass(frozen=True)
class LoadResult:
    """The raw samples of one repetition; `trial_id` and `repetition` are the caller's to set."""

    started_ns: int
    finished_ns: int
    samples: tuple[Sample, ...]
    steps: tuple[StepSample, ...] = ()
    clients: tuple[ClientHealth, ...] = ()  # one per load process; none for the offline driver
    server_metrics: tuple[ServerMetrics, ServerMetrics] | None = None  # before and after


class Interrupted(KeyboardInterrupt):
    """A run was interrupted; `result` holds what was measured until then."""

    def __init__(self, result: LoadResult) -> None:
        super().__init__("the load was interrupted")
        self.result = result


Progress = Callable[[LoadProgress], None]
"""Called a few times a second while a plan is carried out."""


class Target(Protocol):
    """Something that serves a model under a configuration and can be put under load."""

    def configure(self, knobs: Mapping[str, KnobValue]) -> Configured:
        """Makes a complete configuration be in force, by the cheapest restart that does it.

        Raises `KnobError` or `ModelError` for a configuration that this model or machine cannot
        run (the target stays usable), `TargetError` when the target itself failed.
        """

    def tokenize(self, text: str) -> list[int]:
        """The model's token ids of a text, without special tokens."""

    def reset_caches(self) -> None:
        """Forgets cached prefixes, so that a repetition does not profit from the one before."""

    def run(self, plan: LoadPlan, progress: Progress | None = None) -> LoadResult:
        """Carries out a plan and returns a sample for every planned request."""

    def stop(self) -> None:
        """Ends the target and everything it started; harmless when called twice."""
