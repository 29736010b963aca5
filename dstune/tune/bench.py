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
from dstune.load.plan import LoadPlan
from dstune.load.sharing import planned_shared_tokens
from dstune.measure.host import CpuReading, host_load, read_cpu
from dstune.measure.progress import LoadProgress
from dstune.measure.record import HostLoad, PlannedTrial, Repetition, TrialRecord
from dstune.measure.run_folder import RunFolder
from dstune.profile.model import ArrivalKind, Profile
from dstune.stats.anomalies import account, summarize
from dstune.stats.evidence import BLOCK_TOKENS, Evidence
from dstune.stats.figures import check_slo, figures_of
from dstune.stats.metrics import Limit, Loop
from dstune.stats.server_histograms import server_counts, server_latencies
from dstune.stats.trust import check_trust, pooled_remarks
from dstune.stats.vllm_bench import vllm_bench
from dstune.target.target import Configured, Interrupted, LoadResult, Target
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


PlanMaker = Callable[[int, Sequence[int], LoadResult], LoadPlan]
"""The plan of a repetition, from its number, the corpus' tokens and what the warm-up measured."""


@dataclass(frozen=True)
class Job:
    """One trial to measure: which configuration, as what, with which repetitions."""

    planned: PlannedTrial
    trial_id: str
    phase: Literal["search", "confirm", "loadtest", "gate"]
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

    def __init__(
        self,
        profile: Profile,
        folder: RunFolder,
        setting: Setting,
        make_plan: PlanMaker | None = None,
    ) -> None:
        self._profile = profile
        self._folder = folder
        self._setting = setting
        self._make_plan = make_plan or self._plan_of_profile
        self._loop = loop_of(profile)
        self._limits = limits_of(profile)
        self._target: Target | None = None
        self._tokens: list[int] | None = None
        self._start_s = 0.0
        self._num_planned = 0
        self._block_tokens = BLOCK_TOKENS
        self._num_blocks: int | None = None
        self.was_interrupted = False

    def measure(self, job: Job) -> TrialRecord:
        """Runs a trial and writes its samples; what this machine cannot run is `infeasible`.

        A failure of the default configuration that is not about its knobs is raised instead:
        then it is the model or the target that does not work. A load test and a gate have no
        other configuration to go on with, so there every error is raised.
        """
        started_ns = self._setting.clock_ns()
        self._start_s, self._num_planned = 0.0, 0
        try:
            configured, loads = self._run(job)
        except (KnobError, ModelError, TargetError) as error:
            if isinstance(error, TargetError):
                self.close()
            if job.phase in ("loadtest", "gate"):
                raise
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

    def prepare(self, planned: PlannedTrial) -> None:
        """Starts the target and warms it up, so that the next trial's load begins at once."""
        target = self._open()
        configured = target.configure(planned.knobs)
        self._check_length(planned, configured)
        target.run(build_warmup(self._profile, self._tokens_of(target, configured)))

    def close(self) -> None:
        """Stops the target, if one runs; the next one tells its own tokens."""
        target, self._target, self._tokens = self._target, None, None
        if target is not None:
            target.stop()

    def _run(self, job: Job) -> tuple[Configured, list[tuple[Repetition, LoadResult]]]:
        target = self._open()
        configured = target.configure(job.planned.knobs)
        block_size = configured.effective.get("block_size")
        self._block_tokens = block_size if isinstance(block_size, int) else BLOCK_TOKENS
        num_blocks = configured.model.get("num_blocks")
        self._num_blocks = num_blocks if isinstance(num_blocks, int) else None
        self._check_length(job.planned, configured)
        tokens = self._tokens_of(target, configured)
        warmup = target.run(build_warmup(self._profile, tokens))
        loads = []
        for index, repetition in enumerate(job.repetitions):
            target.reset_caches()
            plan = self._make_plan(repetition, tokens, warmup)
            repetition_load = self._repeat(target, job, index, plan)
            loads.append(repetition_load)
            self._num_planned += _num_due(plan, repetition_load[1])
        return configured, loads

    def _plan_of_profile(
        self, repetition: int, tokens: Sequence[int], _warmup: LoadResult
    ) -> LoadPlan:
        return build_plan(self._profile, repetition, tokens)

    def _repeat(
        self, target: Target, job: Job, index: int, plan: LoadPlan
    ) -> tuple[Repetition, LoadResult]:
        num, repetition = len(job.repetitions), job.repetitions[index]

        def advance(progress: LoadProgress) -> None:
            self._setting.observer.advances(index + 1, num, progress)

        before = self._setting.read_cpu()
        try:
            result = target.run(plan, advance)
        except Interrupted as interrupt:
            if job.phase != "loadtest":  # a sweep measures a trial whole or not at all
                raise
            self.was_interrupted = True
            result = interrupt.result
        host = host_load(before, self._setting.read_cpu())
        result = _named(result, job.trial_id, repetition)
        samples = result.samples
        record = Repetition(
            repetition=repetition,
            started_ns=result.started_ns,
            finished_ns=result.finished_ns,
            num_requests=len(samples),
            figures=figures_of([samples], self._loop, self._limits, result.steps, self._num_blocks),
            host=host,
            remarks=check_trust(self._evidence(plan, result, host)),
        )
        return record, result

    def _evidence(self, plan: LoadPlan, result: LoadResult, host: HostLoad) -> Evidence:
        block_tokens = self._block_tokens
        return Evidence(
            samples=result.samples,
            loop=self._loop,
            limits=self._limits,
            planned_prompt_tokens={
                one.request_id: len(one.prompt_token_ids) for one in plan.requests
            },
            planned_shared_tokens=planned_shared_tokens(plan, block_tokens),
            block_tokens=block_tokens,
            asked_rate_per_s=self._profile.arrivals.mean_rate_per_s,
            clients=result.clients,
            server=result.server_metrics,
            host=host,
        )

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
        rate = self._profile.arrivals.mean_rate_per_s
        for number, samples in zip(job.repetitions, by_repetition, strict=True):
            exported = vllm_bench(samples, self._loop, self._limits, rate)
            name = f"trials/{job.trial_id}/vllm_bench-{number}.json"
            self._folder.write_json(name, exported)
        repetitions = tuple(repetition for repetition, _ in loads)
        success_rate = self._profile.slo.success_rate
        slo = check_slo(by_repetition, self._limits, success_rate)
        readings = [result.server_metrics for _, result in loads if result.server_metrics]
        return self._record(job, started_ns).model_copy(
            update={
                "status": "measured",
                "start_s": self._start_s,
                "restart": configured.restart,
                "restart_s": configured.seconds,
                "effective": dict(configured.effective),
                "model": dict(configured.model),
                "repetitions": repetitions,
                "figures": figures_of(
                    by_repetition, self._loop, self._limits, steps, self._num_blocks
                ),
                "slo": slo,
                "remarks": pooled_remarks(repetitions, slo),
                "accounting": account(pooled, self._num_planned),
                "anomalies": summarize(pooled, self._limits, success_rate),
                "server_latencies": server_latencies(readings),
                "server_counts": server_counts(readings),
            }
        )

    def _record(self, job: Job, started_ns: int) -> TrialRecord:
        return TrialRecord(
            trial_id=job.trial_id,
            phase=job.phase,
            driver=self._profile.driver,
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
                f"{configured.model.get('name', self._profile.model)} is {length} here"
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


def _num_due(plan: LoadPlan, result: LoadResult) -> int:
    """How many requests were planned; a closed loop that ends by the clock has a pool instead, of
    which those count whose turn came.
    """
    is_pool = plan.concurrency is not None and plan.duration_s is not None
    return len(result.samples) if is_pool else len(plan.requests)


def _named(result: LoadResult, trial_id: str, repetition: int) -> LoadResult:
    """The same result, every row saying where it belongs."""
    return dataclasses.replace(
        result,
        samples=tuple(
            dataclasses.replace(one, trial_id=trial_id, repetition=repetition)
            for one in result.samples
        ),
        steps=tuple(
            dataclasses.replace(one, trial_id=trial_id, repetition=repetition)
            for one in result.steps
        ),
    )
