"""The timeline in Chrome's trace event format: its fields, tracks, nesting and times."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

import numpy as np
import pytest
from traces import Made, simulated, trace

from dstune.measure.operation_trace import OpClass, Span, Trace
from dstune.report.timeline import chrome_trace


def spans_of(made: Trace) -> list[Span]:
    """Two operations in each of the first three steps, one inside the other, and scheduling."""
    found = []
    for step in made.steps[:3]:
        at, half = step.start_ns, step.duration_ns // 2
        found += [
            Span("schedule", OpClass.SCHEDULING, at, 100),
            Span("inner", OpClass.FFN, at + 200, half - 300),
            Span("outer", OpClass.ATTENTION, at + 200, half),
        ]
    return found


@pytest.fixture
def document() -> dict[str, Any]:
    made = trace(
        [[Made({"experts": 50.0}, wait=10.0, http=20.0) for _ in range(5)] for _ in range(2)]
    )
    return chrome_trace(dataclasses.replace(made, spans=tuple(spans_of(made))))


def complete(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in document["traceEvents"] if one["ph"] == "X"]


def track(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    (tid,) = [one["tid"] for one in document["traceEvents"]
              if one["name"] == "thread_name" and one["args"]["name"] == name]  # fmt: skip
    return [one for one in complete(document) if one["tid"] == tid]


def test_every_event_has_the_fields_that_the_format_asks(document: dict[str, Any]) -> None:
    json.dumps(document, allow_nan=False)
    for one in complete(document):
        assert {"ph", "pid", "tid", "name", "cat", "ts", "dur"} <= set(one)
        assert one["ts"] >= 0 and one["dur"] >= 0
    assert min(one["ts"] for one in complete(document)) == 0
    metadata = [one for one in document["traceEvents"] if one["ph"] == "M"]
    assert {one["name"] for one in metadata} >= {"process_name", "thread_name"}


def test_each_track_shows_its_own(document: dict[str, Any]) -> None:
    assert len(track(document, "steps")) == 10
    assert track(document, "steps")[3]["args"]["step"] == 3
    assert {one["name"] for one in track(document, "operations")} == {"inner", "outer"}
    assert [one["name"] for one in track(document, "scheduling")] == ["schedule"] * 3
    between = track(document, "idle and http")
    assert [one["name"] for one in between] == ["idle", "http"] * 8, "not before a load"
    assert [one["dur"] for one in between[:2]] == [10, 20]


def assert_nested(events: list[dict[str, Any]]) -> None:
    starts = [one["ts"] for one in events]
    assert starts == sorted(starts)
    for one, other in itertools.pairwise(events):
        first_ns, next_ns = round(one["ts"] * 1000), round(other["ts"] * 1000)
        end_ns, next_end_ns = first_ns + round(one["dur"] * 1000), next_ns + round(
            other["dur"] * 1000
        )  # fmt: skip
        assert next_ns >= end_ns or next_end_ns <= end_ns


def test_events_of_a_track_nest_or_follow(document: dict[str, Any]) -> None:
    tracks = {one["tid"] for one in complete(document)}
    assert len(tracks) == 4
    for tid in tracks:
        assert_nested([one for one in complete(document) if one["tid"] == tid])
    outer, inner = track(document, "operations")[:2]
    assert (outer["name"], inner["name"]) == ("outer", "inner"), "the enclosing one comes first"


def test_what_overlaps_goes_to_a_further_track() -> None:
    made = trace([[Made({"experts": 50.0})]])
    spans = (
        Span("a", OpClass.FFN, 1_000_000, 100),
        Span("b", OpClass.FFN, 1_000_050, 100),
        Span("c", OpClass.FFN, 1_000_120, 10),
    )
    document = chrome_trace(dataclasses.replace(made, spans=spans))
    assert [one["name"] for one in track(document, "operations")] == ["a", "c"]
    assert [one["name"] for one in track(document, "operations 2")] == ["b"]


def test_a_trace_without_spans_shows_its_steps() -> None:
    document = chrome_trace(simulated(np.random.default_rng(1), num_loads=1))
    assert len(track(document, "steps")) == 60
    assert track(document, "operations") == []
    assert len(complete(chrome_trace(trace([])))) == 0
