"""Gate: what got slower? On a failure both sides are traced in turns, operation by operation."""

from __future__ import annotations

import statistics
from dataclasses import replace

from dstune.errors import DstuneError
from dstune.gate.plan import GateSetting
from dstune.gate.sides import Side
from dstune.measure.comparison import GateResult
from dstune.measure.operation_trace import Trace
from dstune.measure.run_folder import RunFolder
from dstune.measure.trace_files import write_trace
from dstune.profile.model import Profile
from dstune.stats.operation_diff import OperationDiff, diff, shares_of
from dstune.stats.step_table import REST
from dstune.target.target import Target
from dstune.tune.bench import Setting
from dstune.tune.trace import NUM_PAIRS, TraceJob, Tracer, deterministic, trace_both

QUEUE = "queue_p50_ms"


def explain(
    result: GateResult, folder: RunFolder, sides: tuple[Side, Side], setting: GateSetting,
    has_both_up: bool = True,
) -> GateResult:  # fmt: skip
    """The result with the operations that the slowdown comes from, or a note that says why not.

    The verdict stands whatever happens here. Traces are kept as DIR/trace-baseline and
    DIR/trace-candidate, for `dstune trace diff`.
    """
    if not all(one.source.is_embedded for one in sides):
        return _noted(result, "not explained: only dstune's own engine can be traced")
    setting.observer.notes("both sides are traced to find out what got slower")
    try:
        found = _traced(folder, sides, setting, has_both_up)
    except KeyboardInterrupt:
        return _noted(result, "not explained: interrupted")
    except DstuneError as error:  # an earlier version may not know how
        return _noted(result, f"not explained: {error}")
    slower = shares_of(found)
    result = result.model_copy(update={"explanation": slower})
    if not found.whole.is_slower:
        return _noted(result, f"steps of the same work are not slower beyond noise{_waits(result)}")
    if not slower or slower[0].share.value is None:
        return _noted(result, "steps are slower, and no operation by itself beyond noise")
    named = slower[0].operation
    if named == REST[0]:
        named = "what no operation covers (Python, torch's own)"
    said = f"{result.message}; {named} explains {slower[0].share.value:.0%} of it"
    return result.model_copy(update={"message": said})


def _waits(result: GateResult) -> str:
    """How long requests waited for their first step, where the engine tells."""
    medians = []
    for side in (result.baseline, result.candidate):
        values = [run.figures[QUEUE] for run in side.runs if QUEUE in run.figures]
        if not values:
            return ""
        medians.append(statistics.median(values))
    return f": requests wait {medians[1]:.3g} ms for their first step, {medians[0]:.3g} before"


def _traced(
    folder: RunFolder, sides: tuple[Side, Side], setting: GateSetting, has_both_up: bool
) -> OperationDiff:
    tracers = [_tracer(one, folder, setting) for one in sides]
    try:
        if has_both_up:
            before, after = trace_both(tracers[0], tracers[1])
        else:
            before, after = (_alone(one) for one in tracers)
    finally:
        for one in tracers:
            one.close()
    for side, trace in zip(sides, (before, after), strict=True):
        place = folder.path / f"trace-{side.name}"
        place.mkdir(exist_ok=True)
        write_trace(place, trace)
    return diff(before, after, are_paired=has_both_up)


def _alone(tracer: Tracer) -> Trace:
    """As many loads as a pair has, one after the other."""
    tracer.record(NUM_PAIRS)
    taken = tracer.trace()
    tracer.close()
    return taken


def _tracer(side: Side, folder: RunFolder, setting: GateSetting) -> Tracer:
    def open_target(profile: Profile) -> Target:
        return setting.open_side(replace(side, profile=profile), True)

    job = TraceJob(deterministic(side.profile, side.knobs), side.knobs, is_closed=True)
    own = Setting(open_target, setting.observer, setting.corpus, setting.clock_ns, setting.read_cpu)
    return Tracer(job, folder, own, f"trace-{side.name}")


def _noted(result: GateResult, note: str) -> GateResult:
    return result.model_copy(update={"notes": (*result.notes, note)})
