"""A target with a clock of its own: every run takes no time and gives exact, repeatable samples.

The model of latency: a step serves up to `max_num_seqs` sequences and takes `step_s`, faster
with int8; requests beyond that wait. So more sequences mean more throughput and slower tokens.
Hostile requests end as their kind should.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dstune.knobs import KnobValue, Restart, restart_between
from dstune.load.plan import LoadPlan, PlannedRequest
from dstune.measure.anomalies import EXPECTED, Anomaly
from dstune.measure.host import CpuReading
from dstune.measure.progress import LoadProgress
from dstune.measure.record import Run, Started, TrialRecord
from dstune.measure.sample import Sample, SampleError, Status, StepSample
from dstune.target.target import Configured, LoadResult, Progress

TEXT = "The quick brown fox jumps over the lazy dog, and what it thinks of that is not known. " * 40
RESTART_S = {Restart.LIVE: 0.01, Restart.REBUILD: 0.5, Restart.RELOAD: 3.0}


@dataclass
class FakeClock:
    """A monotonic clock that only moves when it is told to."""

    ns: int = 1_000_000_000

    def now_ns(self) -> int:
        return self.ns

    def advance(self, seconds: float) -> None:
        self.ns += round(seconds * 1e9)

    def read_cpu(self) -> CpuReading:
        """A machine with two cores on which nobody else runs."""
        seconds = self.ns / 1e9
        return CpuReading(seconds, seconds, 0.0, seconds, 2)


@dataclass
class FakeTarget:
    """Serves by the model above; `refuses` raises what configuring should raise."""

    clock: FakeClock = field(default_factory=FakeClock)
    refuses: Callable[[Mapping[str, KnobValue]], Exception | None] = lambda knobs: None
    interrupts_at_run: int | None = None  # raise KeyboardInterrupt in that run, counted from 0
    before_run: Callable[[int], None] = lambda number: None
    noise: float = 0.0  # by prompts and knobs
    slowdown: float = 0.0  # of every token, as a share
    jitter: random.Random | None = None  # log-normal, anew in every run
    jitter_sd: float = 0.0
    max_model_len: int = 4096
    failing: int = 0  # so many requests of every run end in a server error
    digest: str = "fake"
    knobs: Mapping[str, KnobValue] | None = None
    num_runs: int = 0
    num_resets: int = 0
    num_tokenized: int = 0
    num_stops: int = 0
    configured: list[Mapping[str, KnobValue]] = field(default_factory=list)
    plans: list[LoadPlan] = field(default_factory=list)

    def configure(self, knobs: Mapping[str, KnobValue]) -> Configured:
        error = self.refuses(knobs)
        if error is not None:
            raise error
        restart = restart_between(self.knobs, knobs) if self.knobs else Restart.RELOAD
        seconds = RESTART_S[restart] if restart else 0.0
        self.clock.advance(seconds)
        self.knobs = knobs
        self.configured.append(knobs)
        effective = {**knobs, "max_model_len": knobs["max_model_len"] or self.max_model_len}
        model = {"name": "fake", "vocab_size": 256, "digest": self.digest}
        return Configured(restart, seconds, effective, model)

    def tokenize(self, text: str) -> list[int]:
        self.num_tokenized += 1
        return list(text.encode())

    def reset_caches(self) -> None:
        self.num_resets += 1

    def run(self, plan: LoadPlan, progress: Progress | None = None) -> LoadResult:
        assert self.knobs is not None, "configure comes first"
        if self.num_runs == self.interrupts_at_run:
            raise KeyboardInterrupt
        self.before_run(self.num_runs)
        self.num_runs += 1
        self.plans.append(plan)
        started_ns = self.clock.now_ns()
        samples = self._serve(plan, started_ns)
        samples[: self.failing] = [
            dataclasses.replace(one, status=Status.FAILED, error=SampleError.SERVER_ERROR,
                                http_status=500)
            for one in samples[: self.failing]
        ]  # fmt: skip
        finished_ns = max(sample.done_ns or 0 for sample in samples)
        self.clock.ns = finished_ns
        if progress is not None:
            progress(LoadProgress(len(samples), len(samples)))
        step = StepSample("", 0, started_ns, 1000, 0, 3, 3, 0, 100, 0, 0)
        return LoadResult(started_ns, finished_ns, tuple(samples), (step,))

    def stop(self) -> None:
        self.num_stops += 1

    def _serve(self, plan: LoadPlan, started_ns: int) -> list[Sample]:
        assert self.knobs is not None
        seqs = self.knobs["max_num_seqs"]
        assert isinstance(seqs, int)
        token_s = (0.004 + 0.0005 * seqs) * (0.6 if self.knobs["precision"] == "int8" else 1.0)
        noisy = random.Random(repr((plan.requests[0].request_id, sorted(self.knobs.items()))))
        token_s *= 1 + self.noise * noisy.uniform(-1, 1)
        token_s *= 1 + self.slowdown
        if self.jitter is not None:
            token_s *= self.jitter.lognormvariate(0.0, self.jitter_sd)
        slots = [started_ns] * min(seqs, plan.concurrency or seqs)
        samples = []
        for request in plan.requests:
            sample = self._one(request, plan, slots, started_ns, token_s)
            waited_s = (sample.intended_ns - started_ns) / 1e9
            if plan.duration_s is not None and waited_s > plan.duration_s:
                break  # a closed loop whose time is over
            samples.append(sample if sample.kind == "normal" else as_expected(sample))
        return samples

    def _one(
        self, request: PlannedRequest, plan: LoadPlan, slots: list[int], start_ns: int,
        token_s: float,
    ) -> Sample:  # fmt: skip
        slot = min(range(len(slots)), key=lambda at: slots[at])
        closed = request.offset_ns is None
        intended_ns = slots[slot] if closed else start_ns + (request.offset_ns or 0)
        begin_ns = max(intended_ns, slots[slot])
        prefill_ns = round(1e5 * len(request.prompt_token_ids))
        token_ns = round(1e9 * token_s)
        offsets = [
            begin_ns - intended_ns + prefill_ns + at * token_ns
            for at in range(request.output_tokens)
        ]
        last_ns = intended_ns + offsets[-1]
        slots[slot] = last_ns
        return Sample(
            request_id=request.request_id, trial_id="", repetition=0, process=0,
            session_id=request.session_id, turn=request.turn, kind=request.kind,
            status=Status.OK, error=SampleError.NONE, http_status=None,
            intended_ns=intended_ns, sent_ns=intended_ns,
            first_token_ns=intended_ns + offsets[0], last_token_ns=last_ns, done_ns=last_ns,
            chunk_offsets_ns=offsets, chunk_tokens=[1] * len(offsets),
            prompt_tokens=len(request.prompt_token_ids), output_tokens=len(offsets),
            queue_ns=begin_ns - intended_ns, precision="bf16", backend="fake",
        )  # fmt: skip


def as_expected(hostile: Sample) -> Sample:
    """A hostile request that ended in the first of the ways that its kind allows."""
    status = EXPECTED[Anomaly(hostile.kind)][0].status
    if status is Status.CANCELLED:
        return dataclasses.replace(hostile, status=status, error=SampleError.DISCONNECTED)
    if status is Status.REJECTED:
        return dataclasses.replace(
            hostile, status=status, error=SampleError.BAD_REQUEST, http_status=400,
            first_token_ns=None, last_token_ns=None, done_ns=hostile.intended_ns + 1_000_000,
            chunk_offsets_ns=[], chunk_tokens=[], output_tokens=0,
        )  # fmt: skip
    return hostile


@dataclass
class Recorder:
    """An observer that keeps what it was told."""

    begun: list[Run] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)
    started: list[Started] = field(default_factory=list)
    advanced: list[tuple[int, int, int, int]] = field(default_factory=list)
    finished: list[TrialRecord] = field(default_factory=list)

    def begins(self, run: Run, folder: object, num_finished: int) -> None:
        self.begun.append(run)

    def notes(self, text: str) -> None:
        self.noted.append(text)

    def starts(self, trial: Started) -> None:
        self.started.append(trial)

    def advances(self, repetition: int, num_repetitions: int, progress: LoadProgress) -> None:
        self.advanced.append((repetition, num_repetitions, progress.finished, progress.planned))

    def finishes(self, trial: TrialRecord) -> None:
        self.finished.append(trial)
