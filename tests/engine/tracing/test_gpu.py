"""Rows of a GPU's steps without a GPU: captured graphs are stood in for by the computation."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from clocks import Ticking

from dstune.engine.config import EngineConfig
from dstune.engine.engine import Engine, StepOutput
from dstune.engine.graphs import Forward
from dstune.engine.request import SamplingParams
from dstune.engine.runner import Runner
from dstune.engine.scheduler import StepPlan
from dstune.engine.tracing import gpu
from dstune.engine.tracing.ceilings import Ceilings
from dstune.engine.tracing.cost import Cost
from dstune.engine.tracing.engine import TracedEngine
from dstune.engine.tracing.gpu import (
    CalledInStep,
    CallLog,
    GpuTrace,
    kernel_events,
    record_kernels,
)
from dstune.engine.tracing.gpu_kernels import KernelEvent
from dstune.engine.tracing.recorder import Recorder, StepFacts
from dstune.errors import DstuneError
from dstune.kernels.select import Kernels, wrapped
from dstune.model.loading.open import open_checkpoint

KNOBS = {"precision": "fp32", "max_model_len": 64, "kv_cache_memory_bytes": 4 << 20,
         "max_num_seqs": 4}  # fmt: skip


class Logged(Engine):
    """An engine whose decode steps run in stand-ins for captured graphs, its calls logged."""

    def __init__(self) -> None:
        self.marks: list[str] = []
        self.log = CallLog(self.marks.append, lambda: self.marks.append(""))
        self.called: list[CalledInStep] = []
        super().__init__(open_checkpoint("tiny-deepseek"), EngineConfig.from_knobs(KNOBS))

    def _select(self, backend: str) -> Kernels:
        return wrapped(super()._select(backend), self.log.noted)

    def _rebuild(self, config: EngineConfig) -> None:
        super()._rebuild(config)
        self._runner = Runner(
            self._model, self._kernels, self.size, self.log.around(replayed_by_computing)
        )
        self._runner.prepare(config.max_num_seqs)
        self.log.take(StepPlan(()))
        run = self._runner.run

        def taken(plan: StepPlan) -> Any:
            choices = run(plan)
            self.called.append(self.log.take(plan))
            return choices

        self._runner.__dict__["run"] = taken


def replayed_by_computing(forward: Forward) -> Forward:
    """Computes twice, as a capture does; the replay is that result again."""
    forward()
    out = forward()
    return lambda: out


def test_a_replayed_graph_costs_what_its_step_computes() -> None:
    engine = Logged()
    for name, length in (("a", 10), ("b", 20)):
        engine.add(name, tuple(range(length)), SamplingParams(max_tokens=4, ignore_eos=True))
    while engine.has_requests:
        engine.step()
    layers = engine.checkpoint.shape.num_layers
    first, second, third = engine.called[1:4]  # decode steps of two sequences
    for step in (first, second):
        assert step.calls["latent_attention"] == layers
        assert step.calls["linear.lm_head"] == 1 and step.layers[-1] == "linear.lm_head"
    mla = engine.checkpoint.shape.mla
    assert mla is not None
    per_token = 4 * (mla.kv_lora_rank + mla.rope_dim)
    grown = third.costs["latent_attention"].num_bytes - second.costs["latent_attention"].num_bytes
    assert grown == layers * 2 * per_token, "each of two sequences has one more token to read"
    assert first.costs["linear.lm_head"] == second.costs["linear.lm_head"]


def test_prefill_is_counted_as_it_is_called_and_marked() -> None:
    engine = Logged()
    engine.marks.clear()
    engine.add("a", tuple(range(20)), SamplingParams(max_tokens=1))
    engine.step()
    (prefill,) = engine.called
    assert prefill.calls["dense_attention"] == engine.checkpoint.shape.num_layers
    opened = [one for one in engine.marks if one]
    assert len(opened) == sum(prefill.calls.values()) == len(engine.marks) // 2


def recorded(events: list[KernelEvent], called: list[CalledInStep]) -> dict[str, Any]:
    """What a recorder has of steps of 100 ns, a microsecond apart."""
    recorder = Recorder(Ticking())
    steps = []
    for index in range(len(called)):
        start_ns = 1000 * index
        with recorder.step() as keep:
            number = keep(StepFacts(start_ns, start_ns + 100, 0, 1, 10))
        assert number == index
        steps.append((number, start_ns, start_ns + 100))
    record_kernels(recorder, events, steps, called)
    return recorder.take()


def rows_of(taken: dict[str, Any], step: int) -> dict[str, list[int]]:
    return {
        taken["names"][row[1]][0]: row[2:] for row in taken["operations"] if row[0] == step
    }  # fmt: skip


def test_kernels_become_rows_spans_and_gaps() -> None:
    called = [CalledInStep(), CalledInStep()]
    for one in called:
        one.add("linear.o_proj", Cost(100, 10))
        one.add("paged_attention", Cost(7, 3))
        one.add("sample", Cost(1, 1))
    events = [
        KernelEvent("linear_kernel", 1010, 10), KernelEvent("decode_kernel", 1025, 10),
        KernelEvent("merge_kernel", 1035, 5), KernelEvent("strange", 1040, 4),
    ]  # fmt: skip
    taken = recorded(events, called)
    assert rows_of(taken, 1) == {
        "linear.o_proj": [1, 10, 100, 10],
        "paged_attention": [1, 15, 7, 3],
        "sample": [1, 0, 1, 1],
        "other": [1, 4, 0, 0],
        "launch_gap": [3, 5, 0, 0],
    }
    assert rows_of(taken, 0)["paged_attention"] == [1, 0, 7, 3], "without kernels, without time"
    spans = [(taken["names"][number][0], *times) for number, *times in taken["spans"]]
    assert spans[:2] == [("linear.o_proj", 1010, 10), ("paged_attention", 1025, 10)]


def test_layers_that_cannot_be_told_apart_are_one_operation() -> None:
    called = CalledInStep()
    called.add("linear.o_proj", Cost(100, 10))
    called.add("linear.lm_head", Cost(200, 20))
    events = [KernelEvent("nvjet", at, 5) for at in (10, 20, 30)]
    assert rows_of(recorded(events, [called]), 0)["linear"] == [2, 15, 300, 30]


def test_clocks_that_do_not_match_are_told() -> None:
    events = [KernelEvent("linear_kernel", at, 5) for at in (10, 500, 600)]
    with pytest.raises(DstuneError, match="2 of 3 GPU kernels lie outside"):
        recorded(events, [CalledInStep()])


def test_events_of_the_profiler() -> None:
    def event(name: str, device: str, duration_ns: int, is_range: bool = False) -> Any:
        return SimpleNamespace(
            name=lambda: name, start_ns=lambda: 1_000_500, duration_ns=lambda: duration_ns,
            device_type=lambda: SimpleNamespace(name=device), is_user_annotation=lambda: is_range,
        )  # fmt: skip

    events = [event("decode_kernel", "CUDA", 7), event("cudaLaunchKernel", "CPU", 9),
              event("step", "CUDA", 9, is_range=True), event("none", "CUDA", 0)]  # fmt: skip
    results = SimpleNamespace(events=lambda: events)
    finished = SimpleNamespace(profiler=SimpleNamespace(kineto_results=results))
    assert kernel_events(finished, 1_000_000) == [KernelEvent("decode_kernel", 500, 7)]  # type: ignore[arg-type]


def test_the_profilers_events_have_what_is_read_of_them() -> None:
    """On the CPU's events of the torch at hand, whose interface is not a public one."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as finished:
        torch.ones(2) + 1
    assert kernel_events(finished, 0) == []
    inner = finished.profiler
    assert inner is not None and inner.kineto_results is not None
    assert {one.device_type().name for one in inner.kineto_results.events()} == {"CPU"}


class FakeProfile:
    """A profiler that sees one kernel in the middle of every step that `steps` says."""

    steps: ClassVar[list[StepOutput]] = []
    num_running = 0

    def __init__(self, activities: object) -> None:
        self.profiler = SimpleNamespace(kineto_results=SimpleNamespace(events=self.events))

    def start(self) -> None:
        FakeProfile.num_running += 1

    def stop(self) -> None:
        FakeProfile.num_running -= 1

    def events(self) -> list[Any]:
        offset_ns = time.time_ns() - time.monotonic_ns()
        middles = [(one.start_ns + one.end_ns) // 2 + offset_ns for one in self.steps]
        return [
            SimpleNamespace(
                name=lambda: "latent_kernel", start_ns=lambda at=at: at, duration_ns=lambda: 7,
                device_type=lambda: SimpleNamespace(name="CUDA"), is_user_annotation=lambda: False,
            )
            for at in middles
        ]  # fmt: skip


class PretendingGpu(TracedEngine):
    """A traced engine that goes a GPU's way on a CPU."""

    def _load(self, config: EngineConfig) -> None:
        self._ceilings = Ceilings(1.0, 1.0)
        self._gpu = self._gpu or GpuTrace(self.recorder, self.device)
        Engine._load(self, config)


def test_an_engine_on_a_gpu_has_its_kernels_and_its_own_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranges: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", ranges.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: None)
    monkeypatch.setattr(gpu, "profile", FakeProfile)
    monkeypatch.setattr(FakeProfile, "steps", [])
    engine = PretendingGpu(open_checkpoint("tiny-deepseek"), EngineConfig.from_knobs(KNOBS))
    ranges.clear()
    engine.add("a", tuple(range(20)), SamplingParams(max_tokens=3, ignore_eos=True))
    while engine.has_requests:
        step = engine.step()
        assert step is not None
        FakeProfile.steps.append(step)
    taken = engine.take_trace()
    decode = rows_of(taken, 2)
    layers = engine.checkpoint.shape.num_layers
    assert decode["latent_attention"][:2] == [layers, 7]
    assert decode["latent_attention"][2] > 0
    assert decode["experts"][1] == 0, "no kernel of its own was seen"
    assert {name for name, row in decode.items() if row[1] and name != "latent_attention"} == {
        "schedule", "complete", "build_input",
    }  # fmt: skip
    assert ranges.count("step") == 3 and "linear.o_proj" in ranges
    engine.reconfigure(EngineConfig.from_knobs(KNOBS | {"block_size": 32}))
    assert FakeProfile.num_running == 1, "one profiler at a time"
    assert engine.take_trace()["steps"] == []
