"""Rows and times from calls, with a clock that is written down beforehand."""

from __future__ import annotations

import pytest
from clocks import Scripted, Ticking

from dstune.engine.tracing.recorder import Recorder, StepFacts
from dstune.errors import DstuneError


def facts(start_ns: int, end_ns: int) -> StepFacts:
    return StepFacts(start_ns, end_ns, 0, 2, 30)


def test_a_step_is_its_calls_and_no_time_of_recording() -> None:
    # schedule 100..110, booked until 112; then the step ends at 120; kept at 125
    recorder = Recorder(Scripted([100, 110, 112, 125]))
    schedule = recorder.timed("schedule", lambda: "plan")
    with recorder.step() as keep:
        assert schedule() == "plan"
        keep(facts(90, 120))
    taken = recorder.take()
    assert taken["names"] == [("schedule", "scheduling")]
    assert taken["operations"] == [[0, 0, 1, 10, 0, 0]]
    assert taken["steps"] == [[0, 90, 28, 0, 2, 30, 0, 0]], "30 long, of which 2 are recording"
    assert taken["spans"] == [(0, 100, 10)]
    assert taken["num_dropped_steps"] == 0
    assert recorder.take()["steps"] == recorder.take()["spans"] == []


def test_an_operation_within_another_counts_once() -> None:
    # choose_tokens from 0; within it complete 10..40, booked until 43; choose_tokens ends at 60
    recorder = Recorder(Scripted([0, 10, 40, 43, 60, 61, 99]))
    inner = recorder.timed("complete", lambda: None)
    outer = recorder.timed("choose_tokens", inner)
    with recorder.step() as keep:
        outer()
        keep(facts(0, 70))
    taken = recorder.take()
    times = {taken["names"][row[1]][0]: row[3] for row in taken["operations"]}
    assert times == {"complete": 30, "choose_tokens": 60 - 33}
    assert taken["steps"][0][2] == 70 - 3 - 1


def test_between_steps_is_waiting_or_serving() -> None:
    # kept at 100; waited 130..170; the next step begins at 190 and is kept at 250
    recorder = Recorder(Scripted([100, 170, 250]))
    with recorder.step() as keep:
        keep(facts(0, 90))
    recorder.waited(130)
    with recorder.step():
        pass  # nothing to compute: no step
    with recorder.step() as keep:
        keep(facts(190, 240))
    first, second = recorder.take()["steps"]
    assert first[6:] == [0, 0], "before the first step there is none"
    assert second[6:] == [40, 190 - 100 - 40]


def test_calls_outside_of_steps_are_not_recorded() -> None:
    recorder = Recorder(Ticking())
    schedule = recorder.timed("schedule", lambda: None)
    schedule()
    with recorder.step() as keep:
        keep(facts(10, 20))
    taken = recorder.take()
    assert taken["operations"] == [] and taken["steps"][0][2] == 10


def test_a_failed_step_leaves_the_next_one_whole() -> None:
    recorder = Recorder(Ticking())
    schedule = recorder.timed("schedule", lambda: None)
    with pytest.raises(ValueError), recorder.step():
        schedule()
        raise ValueError
    with recorder.step() as keep:
        schedule()
        keep(facts(10, 20))
    assert [row[2] for row in recorder.take()["operations"]] == [1]


def test_steps_beyond_the_room_are_counted() -> None:
    recorder = Recorder(Ticking(), most_steps=2)
    for _ in range(5):
        with recorder.step() as keep:
            keep(facts(0, 10))
    taken = recorder.take()
    assert [row[0] for row in taken["steps"]] == [0, 1] and taken["num_dropped_steps"] == 3


def test_an_operation_says_what_it_is_for() -> None:
    with pytest.raises(DstuneError, match="new_kernel has no class"):
        Recorder(Ticking()).timed("new_kernel", lambda: None)
    with pytest.raises(DstuneError, match=r"linear\.new_proj"):
        Recorder(Ticking()).timed("linear.new_proj", lambda: None)
