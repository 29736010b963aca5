"""Tune: the bench at which one configuration after the other is measured.

A trial becomes load on the target, load becomes raw samples on disk, samples become figures.
The target is opened once and kept; one that died is opened again for the next trial.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from dstune.errors import KnobError, ModelError, ProfileError, TargetError
from dstune.load.build import build_plan, build_warmup
from dstune.measure.host import CpuReading, host_load, is_busy, read_cpu
from dstune.measure.progress import LoadProgress
from dstune.measure.record import PlannedTrial, Remark, RemarkCode, Repetition, TrialRecord
from dstune.measure.run_folder import RunFolder
from dstune.profile.model import ArrivalKind, Profile
from dstune.stats.figures import check_slo, figures_of
from dstune.stats.metrics import Limit, Loop
from dstune.stats.vllm_bench import vllm_bench
from dstune.target.target import Configured, LoadResult, Target
from dstune.tune.observer import Observer

NUM_RANDOM_TOKENS = 100_000


@dataclass(frozen=True)
class Setting:
    """What a sweep stands on, each part replaceable by a test."""

    open_target: Callable[[Profile], Target]
    observer: Observer
    corpus: Callable[[], str]
    clock_ns: Callable[[], int] = time.monotonic_ns
    read_cpu: Callable[[], CpuReading] = read_cpu


@dataclass(frozen=True)
class Job:
    """One trial to measure: which configuration, as what, with which repetitions."""

    planned: PlannedTrial
    trial_id: str
    phase: Literal["search", "confirm"]
    repetitions: tuple[int, ...]


def loop_of(profile: Profile) -> Loop:
    """How a profile's arrivals send requests."""
    if profile.arrivals.kind is ArrivalKind.ALL_AT_ONCE:
        return Loop.BATCH
    return Loop.CLOSED if profile.arrivals.kind is ArrivalKind.CONCURRENCY else Loop.OPEN


def limits_of(profile: Profile) -> tuple[Limit, ...]:
    """A profile's latency promises as `stats` takes them."""
    return tuple(
        Limit(one.key, one.metric, one.percentile, one.limit_ms / 1e3) for one in profile.slo.limits
    )


class Bench:
    """Measures trials of one profile into one run folder."""

    def __init__(self, profile: Profile, folder: RunFolder, setting: Setting) -> None:
        self._profile = profile
        self._folder = folder
        self._setting = setting
        self._loop = loop_of(profile)
        self._limits = limits_of(profile)
        self._target: Target | None = None
        self._tokens: list[int] | None = None
        self._start_s = 0.0

    def measure(self, job: Job) -> TrialRecord:
        """Runs a trial and writes its samples; what this machine cannot run is `infeasible`.

        A failure of the default configuration that is not about its knobs is raised instead:
        then it is the model or the target that does not work.
        """
        started_ns = self._setting.clock_ns()
        self._start_s = 0.0
        try:
            configured, loads = self._run(job)
        except (KnobError, ModelError, TargetError) as error:
            if isinstance(error, TargetError):
                self.close()
            is_first = job.phase == "search" and job.planned.origin == "default"
            if is_first and isinstance(error, TargetError):
                message = f"the default configuration failed: {error}"
                raise TargetError(f"{message}; log: {self._folder.log_path}") from None
            if is_first and isinstance(error, ModelError):
                raise
            return self._record(job, started_ns).model_copy(
                update={"reason": str(error), "error": type(error).__name__}
            )
        return self._measured(job, started_ns, configured, loads)

    def close(self) -> None:
        """Stops the target, if one runs."""
        target, self._target = self._target, None
        if target is not None:
            target.stop()

    def _run(self, job: Job) -> tuple[Configured, list[tuple[Repetition, LoadResult]]]:
        target = self._open()
        configured = target.configure(job.planned.knobs)
        self._check_length(job.planned, configured)
        tokens = self._tokens_of(target, configured)
        target.run(build_warmup(self._profile, tokens))
        loads = []
        for index, repetition in enumerate(job.repetitions):
            target.reset_caches()
            loads.append(self._repeat(target, job, index, repetition, tokens))
        return configured, loads

    def _repeat(
        self, target: Target, job: Job, index: int, repetition: int, tokens: Sequence[int]
    ) -> tuple[Repetition, LoadResult]:
        num = len(job.repetitions)

        def advance(progress: LoadProgress) -> None:
            self._setting.observer.advances(index + 1, num, progress)

        plan = build_plan(self._profile, repetition, tokens)
        before = self._setting.read_cpu()
        result = target.run(plan, advance)
        host = host_load(before, self._setting.read_cpu())
        samples = tuple(
            dataclasses.replace(one, trial_id=job.trial_id, repetition=repetition)
            for one in result.samples
        )
        steps = tuple(
            dataclasses.replace(one, trial_id=job.trial_id, repetition=repetition)
            for one in result.steps
        )
        record = Repetition(
            repetition=repetition,
            started_ns=result.started_ns,
            finished_ns=result.finished_ns,
            num_requests=len(samples),
            figures=figures_of([samples], self._loop, self._limits, steps),
            host=host,
        )
        return record, dataclasses.replace(result, samples=samples, steps=steps)

    def _measured(
        self,
        job: Job,
        started_ns: int,
        configured: Configured,
        loads: list[tuple[Repetition, LoadResult]],
    ) -> TrialRecord:
        """Writes the samples, then makes the record; the caller appends it as the last step."""
        by_repetition = [result.samples for _, result in loads]
        pooled = [sample for samples in by_repetition for sample in samples]
        steps = [step for _, result in loads for step in result.steps]
        self._folder.write_samples(job.trial_id, pooled, steps)
        rate = self._profile.arrivals.rate_per_s
        for number, samples in zip(job.repetitions, by_repetition, strict=True):
            exported = vllm_bench(samples, self._loop, self._limits, rate)
            name = f"trials/{job.trial_id}/vllm_bench-{number}.json"
            self._folder.write_json(name, exported)
        repetitions = tuple(repetition for repetition, _ in loads)
        return self._record(job, started_ns).model_copy(
            update={
                "status": "measured",
                "start_s": self._start_s,
                "restart": configured.restart,
                "restart_s": configured.seconds,
                "effective": dict(configured.effective),
                "model": dict(configured.model),
                "repetitions": repetitions,
                "figures": figures_of(by_repetition, self._loop, self._limits, steps),
                "slo": check_slo(by_repetition, self._limits, self._profile.slo.success_rate),
                "remarks": busy_remarks(repetitions),
            }
        )

    def _record(self, job: Job, started_ns: int) -> TrialRecord:
        return TrialRecord(
            trial_id=job.trial_id,
            phase=job.phase,
            origin=job.planned.origin,
            status="infeasible",
            knobs=job.planned.knobs,
            changed=job.planned.changed,
            elapsed_s=(self._setting.clock_ns() - started_ns) / 1e9,
        )

    def _open(self) -> Target:
        if self._target is None:
            before_ns = self._setting.clock_ns()
            self._target = self._setting.open_target(self._profile)
            self._start_s += (self._setting.clock_ns() - before_ns) / 1e9
        return self._target

    def _check_length(self, planned: PlannedTrial, configured: Configured) -> None:
        """A request that the model cannot take is the profile's mistake, not a configuration's."""
        length = configured.effective.get("max_model_len")
        longest = self._profile.workload.longest_request_tokens
        if isinstance(length, int) and longest > length:
            named = planned.knobs.get("max_model_len") is not None
            kind = KnobError if named else ProfileError
            raise kind(
                f"{self._profile.describe_longest()}, but max_model_len of "
                f"{self._profile.model} is {length} here"
            )

    def _tokens_of(self, target: Target, configured: Configured) -> list[int]:
        if self._tokens is None:
            before_ns = self._setting.clock_ns()
            try:
                self._tokens = target.tokenize(self._setting.corpus())
            except ModelError:
                self._tokens = self._random_tokens(configured)
            self._start_s += (self._setting.clock_ns() - before_ns) / 1e9
        return self._tokens

    def _random_tokens(self, configured: Configured) -> list[int]:
        """Token ids for a model with random weights, which has no tokenizer to make them."""
        vocab_size = configured.model.get("vocab_size")
        if self._profile.weights != "random" or not isinstance(vocab_size, int):
            raise ModelError(f"{self._profile.model} has no tokenizer to make prompts with")
        self._setting.observer.notes(
            "random weights come without a tokenizer: prompts are random token ids"
        )
        random = Random(self._profile.workload.seed)
        return [random.randrange(vocab_size) for _ in range(NUM_RANDOM_TOKENS)]


def busy_remarks(repetitions: Sequence[Repetition]) -> tuple[Remark, ...]:
    """The evidence that others used the machine meanwhile, if they did."""
    busy = [one for one in repetitions if one.host is not None and is_busy(one.host)]
    if not busy:
        return ()
    worst = max(one.host.foreign_cpu_share for one in busy if one.host is not None)
    steal = max(one.host.steal_share for one in busy if one.host is not None)
    message = (
        f"{len(busy)} of {len(repetitions)} repetitions on a busy host: others took up to "
        f"{worst:.0%} of the CPU, the hypervisor {steal:.0%}; measure again on a quiet one, or "
        "leave others a core: OMP_NUM_THREADS below the number of cores"
    )
    return (Remark(code=RemarkCode.BUSY_HOST, message=message),)
