"""The fake target, recording operations: four steps in every load, a microsecond more in each."""

from __future__ import annotations

from dataclasses import dataclass

from traces import Made, trace

from dstune.load.plan import LoadPlan
from dstune.measure.operation_trace import OpClass, Span, Trace
from dstune.target.target import Interrupted, LoadResult, Progress

from fakes import FakeTarget  # isort: skip


@dataclass
class FakeTracedTarget(FakeTarget):
    """`attention_us` is what its attention takes in the first load."""

    num_steps: int = 4
    attention_us: float = 100.0
    cut_short_at_run: int | None = None  # raise Interrupted after that run
    num_taken: int = 0

    def run(self, plan: LoadPlan, progress: Progress | None = None) -> LoadResult:
        result = super().run(plan, progress)
        if self.num_runs - 1 == self.cut_short_at_run:
            raise Interrupted(result)
        return result

    def take_trace(self) -> Trace:
        self.num_taken += 1
        made = Made({"latent_attention": self.attention_us + self.num_taken, "experts": 50.0})
        taken = trace([[made] * self.num_steps], facts={"of the engine": "kept"})
        span = Span("latent_attention", OpClass.ATTENTION, taken.steps[0].start_ns, 9_000) \
            if taken.steps else None  # fmt: skip
        return Trace(
            taken.steps, taken.operations, (span,) if span else (), taken.ceilings, "cpu", 0.1,
            taken.facts,
        )  # fmt: skip
