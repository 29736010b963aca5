"""An engine that records what each of its operations costs; it computes the same tokens.

On a CPU every operation is timed where it is called. On a GPU the profiler times kernels, and the
CPU's clock only what the CPU itself does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import time
from collections.abc import Callable
from typing import Any

import torch

from dstune.engine.config import EngineConfig
from dstune.engine.engine import Engine, StepOutput
from dstune.engine.graphs import Capture
from dstune.engine.runner import Runner
from dstune.engine.sampler import Choice
from dstune.engine.scheduler import StepPlan
from dstune.engine.slowdown import Slowdown
from dstune.engine.tracing.ceilings import Ceilings, device_ceilings
from dstune.engine.tracing.gpu import MOST_PROFILED_STEPS, GpuTrace
from dstune.engine.tracing.recorder import Recorder, StepFacts
from dstune.kernels.select import Kernels, wrapped
from dstune.model.loading.open import Checkpoint
from dstune.model.precision import Precision, resolve_precision


class TracedEngine(Engine):
    """Records operations of its kernels, its scheduler and its sampler, step by step."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: EngineConfig,
        device: torch.device | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
        slowdown: Slowdown | None = None,
        measure: Callable[[Kernels, Precision], Ceilings] = device_ceilings,
    ) -> None:
        self.recorder = Recorder(now_ns)
        self._measure = measure
        self._plan = StepPlan(())
        self._gpu: GpuTrace | None = None
        super().__init__(checkpoint, config, device, now_ns, slowdown)

    def _load(self, config: EngineConfig) -> None:
        kernels = super()._select(config.backend)
        precision = resolve_precision(config.precision, self.device, kernels)
        self._ceilings = self._measure(kernels, precision)
        if self.device.type == "cuda":
            self._gpu = self._gpu or GpuTrace(self.recorder, self.device)
            self.recorder.most_steps = MOST_PROFILED_STEPS
        super()._load(config)

    def _select(self, backend: str) -> Kernels:
        wrap = self.recorder.timed if self._gpu is None else self._gpu.log.noted
        return wrapped(super()._select(backend), wrap)

    def _capture(self) -> Capture:
        capture = super()._capture()
        return capture if self._gpu is None else self._gpu.log.around(capture)

    def _rebuild(self, config: EngineConfig) -> None:
        if self._gpu is not None:
            self._gpu.stop()  # graphs are about to be captured
        super()._rebuild(config)
        if self._gpu is None:
            self._watch(self._runner, ("build_input", "choose_tokens"))
        else:  # choosing waits for the GPU, whose kernels are counted
            self._watch(self._runner, ("build_input",))
            self._let_finish(self._runner)
            self._gpu.begin()
        self._watch(self._scheduler, ("schedule", "complete"))
        schedule = self._scheduler.schedule

        def remembered(now_ns: int) -> StepPlan:
            self._plan = schedule(now_ns)
            return self._plan

        self._scheduler.__dict__["schedule"] = remembered

    def _watch(self, owner: object, names: tuple[str, ...]) -> None:
        """Records calls of methods of this one object."""
        for name in names:
            setattr(owner, name, self.recorder.timed(name, getattr(owner, name)))

    def _let_finish(self, runner: Runner) -> None:
        """Makes a step end when its kernels have: one that yields no token would not wait."""
        run = runner.run

        def finished(plan: StepPlan) -> list[Choice]:
            choices = run(plan)
            torch.cuda.synchronize(self.device)
            return choices

        runner.__dict__["run"] = finished

    def step(self) -> StepOutput | None:
        """Computes one step and keeps what it cost."""
        with contextlib.ExitStack() as stack:
            keep = stack.enter_context(self.recorder.step())
            if self._gpu is not None:
                stack.enter_context(self._gpu.step_range())
            step = super().step()
            if step is not None:
                number = keep(self._facts(step))
                if self._gpu is not None:
                    self._gpu.keep(number, (step.start_ns, step.end_ns), self._plan)
                    self.recorder.passed()
        return step

    def _facts(self, step: StepOutput) -> StepFacts:
        return StepFacts(
            start_ns=step.start_ns,
            end_ns=step.end_ns,
            num_prefill_tokens=step.num_prefill_tokens,
            num_decode_tokens=step.num_decode_tokens,
            num_context_tokens=sum(one.start + one.num_tokens for one in self._plan.scheduled),
        )

    def waited(self, since_ns: int) -> None:
        """Tells that since then there was nothing to do."""
        self.recorder.waited(since_ns)

    def take_trace(self) -> dict[str, Any]:
        """See `Recorder.take`; with the device and what it reaches."""
        if self._gpu is not None:
            self._gpu.give()
        taken = self.recorder.take()
        if self._gpu is not None:
            self._gpu.begin()
        return {
            **taken,
            "device": device_name(self.device),
            "ceilings": dataclasses.asdict(self._ceilings),
        }


def device_name(device: torch.device) -> str:
    """What a device calls itself."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} {platform.processor() or platform.machine()}"
