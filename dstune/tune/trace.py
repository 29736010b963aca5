"""Tune: the trace. A profile's load on the embedded engine, which records every operation.

The same requests are repeated, so that an interval can tell a change from noise. As a closed loop
inside the engine's process what every step computes depends on configuration and prompts alone,
and two traces can be compared step by step. What an interrupt leaves is kept.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from dstune.errors import DstuneError, ExitCode, UsageError
from dstune.knobs import KnobValue, complete
from dstune.load.plan import LoadPlan
from dstune.measure.fingerprint import fingerprint
from dstune.measure.operation_trace import PAIR, Trace
from dstune.measure.record import PlannedTrial, RemarkCode, Run, TrialRecord, Verdict
from dstune.measure.run_folder import RunFolder
from dstune.measure.trace_files import write_trace
from dstune.profile.load import dump_profile, restore_profile
from dstune.profile.model import ArrivalKind, Profile
from dstune.target.embedded import OWN_PROGRAM, EmbeddedTarget, EngineProgram
from dstune.target.target import Configured, Interrupted, LoadResult, Progress, Target
from dstune.tune.bench import Bench, Job, Setting

VERB = "trace"
BUSY = (RemarkCode.BUSY_HOST, RemarkCode.HOST_CONTENDED)
NUM_LOADS = 3  # the least for which a load is the unit of an interval
NUM_PAIRS = 6  # where two sides take turns: the interval of 3 would be twice as wide
AT_ONCE = 1e9  # times its speed: an hour of a recorded trace arrives within 4 us
DROPPED = "num_dropped_steps"  # of a trace's facts

SMALL_LOAD = """
name: embedded
workload: {prompt_tokens: 64, output_tokens: 32, num_requests: 16}
arrivals: {kind: concurrency, concurrency: 8}
knobs: {max_num_seqs: 8, max_model_len: 512}
"""
"""What is traced where no profile is given."""


class TracedTarget(Target, Protocol):
    """A target that records operations."""

    def take_trace(self) -> Trace:
        """What was recorded since it was last taken."""


@dataclass(frozen=True)
class TraceJob:
    """What is traced: a profile under one configuration."""

    profile: Profile
    knobs: dict[str, KnobValue]
    is_closed: bool = False  # `profile` is what `deterministic` made
    most_steps: int | None = None  # of each load; unset: all


@dataclass(frozen=True)
class Outcome:
    """How a trace ended."""

    run: Run
    folder: Path
    trace: Trace | None

    @property
    def exit_code(self) -> int:
        """What the program exits with."""
        return self.run.verdict.exit_code if self.run.verdict else ExitCode.FAILED


def check_target(target: str) -> None:
    """Raises `UsageError` for a target that records no operations, before anything is started."""
    if target != "embedded":
        raise UsageError(
            f"only target: embedded can be traced, not {target}: use nsys profile, or that "
            "server's own profiler (/start_profile of vLLM and SGLang)"
        )


def deterministic(profile: Profile, knobs: Mapping[str, KnobValue] | None = None) -> Profile:
    """The same requests so that what each step computes does not depend on time.

    They come by the offline driver as a closed loop of as many as `max_num_seqs` (of `knobs`,
    else of the profile's) allows; those of a recorded trace, which come with it, all at once.
    """
    data = dump_profile(profile)
    num, num_seqs = profile.workload.num_requests, complete(knobs or profile.knobs)["max_num_seqs"]
    assert isinstance(num_seqs, int)
    work = {**data["workload"], "num_requests": num}
    if profile.arrivals.kind is ArrivalKind.TRACE:
        kept = {key: value for key, value in data["arrivals"].items() if key != "duration"}
        arrivals = {**kept, "speed": AT_ONCE}
    else:
        arrivals = {"kind": "concurrency", "concurrency": min(num_seqs, num)}
        work["think_time_s"] = 0.0
    changed = {**data, "driver": "offline", "workload": work, "arrivals": arrivals}
    return restore_profile(changed, "--closed")


def open_traced(
    profile: Profile, log_path: Path, program: EngineProgram = OWN_PROGRAM
) -> TracedTarget:
    """The embedded engine of a profile, recording; raises as `EmbeddedTarget` does."""
    return EmbeddedTarget(
        profile.model,
        weights=profile.weights,
        log_path=log_path,
        driver=profile.driver,
        program=dataclasses.replace(program, traces=True),
    )


class Tracer:
    """Traces one job, load by load; the target is opened at the first and kept."""

    def __init__(
        self, job: TraceJob, folder: RunFolder, setting: Setting, trial_id: str = VERB
    ) -> None:
        self._job = job
        self._trial_id = trial_id
        self._recorders: list[_Recorder] = []

        def open_target(profile: Profile) -> Target:
            recorder = _Recorder(cast("TracedTarget", setting.open_target(profile)))
            self._recorders.append(recorder)
            return recorder

        self._bench = Bench(
            job.profile, folder, dataclasses.replace(setting, open_target=open_target)
        )

    @property
    def was_interrupted(self) -> bool:
        """Whether the last load was cut short."""
        return self._bench.was_interrupted

    @property
    def num_loads(self) -> int:
        """How many loads were recorded."""
        return sum(len(one.traces) for one in self._recorders)

    def record(self, num_loads: int = 1) -> TrialRecord:
        """Puts the target under the same load so many times; raises what `Bench.measure` does."""
        number = self.num_loads
        trial_id = f"{self._trial_id}-{number}" if number else self._trial_id
        planned = _planned(self._job, trial_id)
        # one repetition number: the same prompts and arrivals every time
        return self._bench.measure(Job(planned, trial_id, "loadtest", (0,) * num_loads))

    def trace(self) -> Trace:
        """Everything recorded so far, its loads numbered from 0."""
        taken = [one for recorder in self._recorders for one in recorder.traces]
        configured = self._recorders[0].configured
        assert taken and configured is not None, "record comes first"
        kept = [_first_steps(one, self._job.most_steps) for one in taken]
        facts = {**taken[0].facts, **_facts(self._job, configured), DROPPED: _num_dropped(taken)}
        return _joined(kept, facts)

    def close(self) -> None:
        """Stops the target."""
        self._bench.close()


def trace_both(
    baseline: Tracer, candidate: Tracer, num_loads: int = NUM_PAIRS
) -> tuple[Trace, Trace]:
    """Traces two jobs whose loads take turns, A B B A, so that both meet the same moments.

    The loads of the result are pairs, which its facts say; see `diff` of
    `dstune/stats/operation_diff.py`.
    """
    for number in range(num_loads):
        sides = (baseline, candidate)
        for one in sides if number % 2 == 0 else sides[::-1]:
            one.record()
            if one.was_interrupted:
                raise KeyboardInterrupt
    pair = {PAIR: secrets.token_hex(8)}
    a, b = (
        dataclasses.replace(one, facts={**one.facts, **pair})
        for one in (baseline.trace(), candidate.trace())
    )
    return a, b


def begin(job: TraceJob, root: Path, argv: Sequence[str], environment: dict[str, Any]) -> RunFolder:
    """Makes the run folder of a trace; nothing is started yet."""
    folder = RunFolder.create(root, VERB, job.profile.name)
    folder.write_run(
        Run(
            verb=VERB,
            status="running",
            argv=list(argv),
            started_utc=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            wall_clock_zero_ns=time.time_ns() - time.monotonic_ns(),
            profile=dump_profile(job.profile),
            environment=environment,
            plan=(_planned(job, VERB),),
        )
    )
    return folder


def trace(folder: RunFolder, job: TraceJob, num_loads: int, setting: Setting) -> Outcome:
    """Records the loads and writes them; an error is raised after the run is marked failed."""
    run = folder.read_run()
    tracer = Tracer(job, folder, setting)
    setting.observer.begins(run, folder.path, 0)
    try:
        trial = tracer.record(num_loads)
        folder.append_trial(trial)
        for remark in trial.remarks:
            if remark.code in BUSY:
                setting.observer.notes(f"{remark.message}; limits were measured then, too")
        was_interrupted = tracer.was_interrupted
        if not was_interrupted and not tracer.num_loads:
            raise DstuneError("the engine recorded no step of the load")
    except KeyboardInterrupt:
        was_interrupted = True
    except Exception as error:
        code = error.exit_code if isinstance(error, DstuneError) else ExitCode.FAILED
        _end(folder, run, "failed", Verdict(exit_code=code, message=str(error)))
        raise
    finally:
        tracer.close()
    recorded = tracer.trace() if tracer.num_loads else None
    if recorded is None:
        message = "interrupted before anything was recorded"
        verdict = Verdict(exit_code=ExitCode.INTERRUPTED, message=message)
        return Outcome(_end(folder, run, "interrupted", verdict), folder.path, None)
    write_trace(folder.path, recorded)
    loads = "1 load" if tracer.num_loads == 1 else f"{tracer.num_loads} loads"
    message = f"{len(recorded.steps):,} steps of {loads} were traced"
    if recorded.facts[DROPPED]:
        message += f"; {recorded.facts[DROPPED]:,} more were too many to keep"
    if was_interrupted:
        verdict = Verdict(exit_code=ExitCode.INTERRUPTED, message=f"what is kept: {message}")
        return Outcome(_end(folder, run, "interrupted", verdict), folder.path, recorded)
    verdict = Verdict(exit_code=ExitCode.PASS, message=message)
    return Outcome(_end(folder, run, "finished", verdict), folder.path, recorded)


class _Recorder:
    """A target that keeps the trace of every load: of each run that follows a reset."""

    def __init__(self, target: TracedTarget) -> None:
        self._target = target
        self._is_load = False
        self._was_interrupted = False
        self.configured: Configured | None = None
        self.traces: list[Trace] = []

    def configure(self, knobs: Mapping[str, KnobValue]) -> Configured:
        """See `Target`; what runs until the next reset is warm-up."""
        self._is_load = False
        self.configured = self._target.configure(knobs)
        return self.configured

    def tokenize(self, text: str) -> list[int]:
        """See `Target`."""
        return self._target.tokenize(text)

    def reset_caches(self) -> None:
        """See `Target`; after an interrupt no further load begins."""
        if self._was_interrupted:
            raise KeyboardInterrupt
        self._target.reset_caches()
        self._is_load = True

    def run(self, plan: LoadPlan, progress: Progress | None = None) -> LoadResult:
        """See `Target`."""
        try:
            result = self._target.run(plan, progress)
        except Interrupted:
            self._was_interrupted = True
            self._take()
            raise
        self._take()
        return result

    def stop(self) -> None:
        """See `Target`."""
        self._target.stop()

    def _take(self) -> None:
        taken = self._target.take_trace()
        if self._is_load and taken.steps:
            self.traces.append(taken)


def _planned(job: TraceJob, trial_id: str) -> PlannedTrial:
    return PlannedTrial(trial_id=trial_id, origin="default", knobs=job.knobs, changed={})


def _facts(job: TraceJob, configured: Configured) -> dict[str, object]:
    """What two traces must agree in to be compared, and what they were taken under."""
    data, environment = dump_profile(job.profile), fingerprint()
    cpu = environment["cpu"]
    return {
        "profile": job.profile.name,
        "model": configured.model.get("name", job.profile.model),
        "model_digest": configured.model.get("digest"),
        "precision": configured.effective.get("precision"),
        "kv_cache_dtype": configured.effective.get("kv_cache_dtype"),
        "backend": configured.effective.get("backend"),
        "knobs": dict(configured.effective),
        "workload": data["workload"],
        # a closed loop has as many in flight as the configuration lets run
        "load": "closed loop" if job.is_closed else data["arrivals"],
        "driver": job.profile.driver,
        "machine": {"cpu": cpu["model"], "cores": cpu["usable_cores"], "gpus": environment["gpus"]},
    }


def _num_dropped(traces: Sequence[Trace]) -> int:
    """Steps that the engine did not keep."""
    return sum(cast("int", one.facts.get(DROPPED, 0)) for one in traces)


def _first_steps(trace: Trace, most: int | None) -> Trace:
    if most is None:
        return trace
    kept = sorted(trace.steps, key=lambda one: (one.load, one.step))[:most]
    known = {(one.load, one.step) for one in kept}
    rows = tuple(row for row in trace.operations if (row.load, row.step) in known)
    return dataclasses.replace(trace, steps=tuple(kept), operations=rows)


def _joined(traces: Sequence[Trace], facts: dict[str, object]) -> Trace:
    """One trace of several loads; the spans are the first one's."""
    fronts = [one.front_cpu_s for one in traces if one.front_cpu_s is not None]
    return Trace(
        steps=tuple(
            dataclasses.replace(step, load=load)
            for load, one in enumerate(traces)
            for step in one.steps
        ),
        operations=tuple(
            dataclasses.replace(row, load=load)
            for load, one in enumerate(traces)
            for row in one.operations
        ),
        spans=traces[0].spans,
        ceilings=traces[0].ceilings,
        device=traces[0].device,
        front_cpu_s=sum(fronts) if fronts else None,
        facts=facts,
    )


def _end(
    folder: RunFolder, run: Run, status: Literal["finished", "interrupted", "failed"],
    verdict: Verdict,
) -> Run:  # fmt: skip
    ended = run.model_copy(update={"status": status, "verdict": verdict})
    folder.write_run(ended)
    return ended
