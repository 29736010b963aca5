"""Report: a trace as a timeline for Perfetto or chrome://tracing, in Chrome's trace event format.

Times are microseconds after the first step's start ("Trace Event Format", complete events "X" and
metadata "M"). Events of one track nest or follow each other; what overlaps otherwise, as on a GPU
of several streams, goes to a further track.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dstune.measure.operation_trace import OpClass, Span, Trace, TraceStep

PROCESS = 1
STEPS, BETWEEN, SCHEDULING, OPERATIONS = 1, 2, 3, 4  # further tracks of operations follow
TRACKS = {
    STEPS: "steps",
    BETWEEN: "idle and http",
    SCHEDULING: "scheduling",
    OPERATIONS: "operations",
}


@dataclass(frozen=True)
class _Event:
    """A piece of one track."""

    track: int
    name: str
    category: str
    start_ns: int
    end_ns: int
    args: dict[str, object]


def chrome_trace(trace: Trace) -> dict[str, Any]:
    """The document to write as timeline.json."""
    steps = sorted(trace.steps, key=lambda one: (one.load, one.step))
    events = [_step(one) for one in steps]
    events += _between(steps)
    scheduling = [one for one in trace.spans if one.op_class is OpClass.SCHEDULING]
    events += [_span(SCHEDULING, one) for one in scheduling]
    lanes = _lanes([one for one in trace.spans if one.op_class is not OpClass.SCHEDULING])
    events += [_span(OPERATIONS + at, one) for at, lane in enumerate(lanes) for one in lane]
    tracks = {**TRACKS, **{OPERATIONS + at: f"operations {at + 1}" for at in range(1, len(lanes))}}
    zero_ns = min((one.start_ns for one in events), default=0)
    events.sort(key=lambda one: (one.track, one.start_ns, -one.end_ns))
    return {
        "displayTimeUnit": "ms",
        "otherData": {"device": trace.device,
                      **{key: str(value) for key, value in trace.facts.items()}},
        "traceEvents": [*_names(tracks), *(_complete(one, zero_ns) for one in events)],
    }  # fmt: skip


def _step(step: TraceStep) -> _Event:
    args: dict[str, object] = {
        "load": step.load,
        "step": step.step,
        "prefill tokens": step.num_prefill_tokens,
        "decode tokens": step.num_decode_tokens,
        "context tokens": step.num_context_tokens,
    }
    end_ns = step.start_ns + step.duration_ns
    return _Event(STEPS, step.phase.value, "step", step.start_ns, end_ns, args)


def _between(steps: Sequence[TraceStep]) -> Iterable[_Event]:
    """Idle time, then HTTP, as they lie before a step; never over the step before."""
    before_ns: dict[int, int] = {}  # load -> end of its last step
    for step in steps:
        http_ns = step.start_ns - step.http_ns
        floor_ns = before_ns.get(step.load)
        if floor_ns is not None:  # what came before a load is not of it
            idle_ns = max(http_ns - step.wait_ns, floor_ns)
            http_ns = max(http_ns, floor_ns)
            if http_ns > idle_ns and step.wait_ns:
                yield _Event(BETWEEN, OpClass.IDLE.value, "between", idle_ns, http_ns, {})
            if step.start_ns > http_ns and step.http_ns:
                yield _Event(BETWEEN, OpClass.HTTP.value, "between", http_ns, step.start_ns, {})
        before_ns[step.load] = step.start_ns + step.duration_ns


def _span(track: int, span: Span) -> _Event:
    end_ns = span.start_ns + span.duration_ns
    return _Event(track, span.name, span.op_class.value, span.start_ns, end_ns, {})


def _lanes(spans: Iterable[Span]) -> list[list[Span]]:
    """Spans by track, so that those of one track nest or follow each other."""
    lanes: list[list[Span]] = []
    open_ends: list[list[int]] = []  # by lane, the ends of the spans that are open, outermost first
    for span in sorted(spans, key=lambda one: (one.start_ns, -one.duration_ns)):
        end_ns = span.start_ns + span.duration_ns
        for lane, ends in zip(lanes, open_ends, strict=True):
            while ends and ends[-1] <= span.start_ns:
                ends.pop()
            if not ends or end_ns <= ends[-1]:
                lane.append(span)
                ends.append(end_ns)
                break
        else:
            lanes.append([span])
            open_ends.append([end_ns])
    return lanes


def _names(tracks: dict[int, str]) -> Iterable[dict[str, Any]]:
    yield {"ph": "M", "pid": PROCESS, "name": "process_name", "args": {"name": "dstune engine"}}
    for track, name in tracks.items():
        base = {"ph": "M", "pid": PROCESS, "tid": track}
        yield {**base, "name": "thread_name", "args": {"name": name}}
        yield {**base, "name": "thread_sort_index", "args": {"sort_index": track}}


def _complete(event: _Event, zero_ns: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": PROCESS,
        "tid": event.track,
        "name": event.name,
        "cat": event.category,
        "ts": (event.start_ns - zero_ns) / 1000,
        "dur": (event.end_ns - event.start_ns) / 1000,
        "args": event.args,
    }
