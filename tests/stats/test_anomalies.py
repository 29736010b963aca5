"""Hostile requests: how they ended, who suffered beside them; and every request accounted for."""

from __future__ import annotations

import dataclasses

import pytest
from samples import sample

from dstune.measure.anomalies import EXPECTED, Anomaly
from dstune.measure.record import AnomalyKind
from dstune.measure.sample import Sample, SampleError, Status
from dstune.stats.anomalies import account, handled, summarize
from dstune.stats.metrics import Limit

TTFT_200 = Limit("ttft_p99_ms", "ttft", 99, 0.2)


def hostile(
    kind: Anomaly, status: Status, http_status: int | None = None, at_ms: float = 0,
    end_ms: float = 10,
) -> Sample:  # fmt: skip
    one = sample(at_ms, status=status, kind=kind)
    return dataclasses.replace(one, http_status=http_status, done_ns=round(end_ms * 1e6))


def normal(start_ms: float, end_ms: float, ttft_ms: float = 50) -> Sample:
    return sample(start_ms, None, [start_ms + ttft_ms, end_ms])


def only(samples: list[Sample], success_rate: float = 0.99) -> AnomalyKind:
    (found,) = summarize(samples, [TTFT_200], success_rate)
    return found


def test_kinds_in_their_order_with_outcomes() -> None:
    found = summarize(
        [
            hostile(Anomaly.DISCONNECT, Status.CANCELLED),
            hostile(Anomaly.OVERLONG_TEXT, Status.REJECTED, 413),
            hostile(Anomaly.OVERLONG_TEXT, Status.REJECTED, 400),
            hostile(Anomaly.OVERLONG_TEXT, Status.REJECTED, 400),
            hostile(Anomaly.OVERLONG_TEXT, Status.OK, 200),
            hostile(Anomaly.OVERLONG_TEXT, Status.FAILED, 500),
        ],
        [TTFT_200],
        0.99,
    )
    assert [one.kind for one in found] == ["overlong_text", "disconnect"]
    assert found[0].outcomes == {"400": 2, "413": 1, "ok": 1, "500": 1}
    assert (found[0].num, found[0].num_as_expected) == (5, 4)
    assert found[1].outcomes == {"cancelled": 1} and found[1].num_as_expected == 1


@pytest.mark.parametrize("kind", list(Anomaly))
def test_no_kind_may_end_in_a_servers_fault(kind: Anomaly) -> None:
    bad = [hostile(kind, Status.FAILED, 500), hostile(kind, Status.FAILED),
           hostile(kind, Status.TIMEOUT)]  # fmt: skip
    assert only(bad).num_as_expected == 0
    good = [hostile(kind, one.status, min(one.http_status, default=200)) for one in EXPECTED[kind]]
    assert only(good).num_as_expected == len(good)


def test_those_that_never_ended_are_not_counted() -> None:
    stopped = [hostile(Anomaly.EMPTY_PROMPT, Status.INCOMPLETE),
               hostile(Anomaly.EMPTY_PROMPT, Status.UNSENT)]  # fmt: skip
    assert summarize(stopped, [TTFT_200], 0.99) == ()
    assert only([*stopped, hostile(Anomaly.EMPTY_PROMPT, Status.REJECTED, 400)]).num == 1


def test_beside_are_the_normal_requests_under_way_meanwhile() -> None:
    """Hostile ones at 100-200 and 150-300 ms, and at 1000-1010 ms."""
    bad = [
        hostile(Anomaly.SLOW_READER, Status.OK, 200, 150, 300),
        hostile(Anomaly.SLOW_READER, Status.OK, 200, 100, 200),
        hostile(Anomaly.SLOW_READER, Status.OK, 200, 1000, 1010),
    ]
    spans = {(0, 99): False, (0, 100): True, (0, 2000): True, (180, 190): True, (300, 400): True,
             (301, 999): False, (1005, 1100): True, (1011, 1100): False}  # fmt: skip
    for (start_ms, end_ms), is_beside in spans.items():
        one = normal(start_ms, end_ms, ttft_ms=1)
        assert only([*bad, one]).num_beside == is_beside, (start_ms, end_ms)
    together = [normal(start, end, ttft_ms=1) for start, end in spans]
    assert only([*bad, *together]).num_beside == sum(spans.values())


def test_beside_agrees_with_comparing_every_pair() -> None:
    import random

    draw = random.Random(3)
    for _ in range(50):
        starts = [(draw.uniform(0, 1000), draw.uniform(1, 60)) for _ in range(60)]
        bad = [hostile(Anomaly.DISCONNECT, Status.CANCELLED, 200, at, at + long)
               for at, long in starts[:10]]  # fmt: skip
        good = [normal(at, at + long, ttft_ms=0.5) for at, long in starts[10:]]
        pairs = sum(
            any(a.intended_ns <= (b.done_ns or 0) and b.intended_ns <= (a.done_ns or 0)
                for b in bad)
            for a in good
        )  # fmt: skip
        assert only([*bad, *good]).num_beside == pairs


def test_handled_means_that_nobody_beside_suffered() -> None:
    bad = [hostile(Anomaly.OVERLONG_TEXT, Status.REJECTED, 413, 0, 1000)] * 4
    fine = [normal(at, at + 100) for at in range(0, 500, 10)]
    assert only([*bad, *fine]).num_handled == 4
    late = [normal(at, at + 900, ttft_ms=800) for at in range(0, 500, 10)]
    one = only([*bad, *late])
    assert (one.num_as_expected, one.is_slo_met_beside, one.num_handled) == (4, False, 0)


def test_a_lost_request_beside_breaks_the_success_rate() -> None:
    bad = [hostile(Anomaly.OVERLONG_TEXT, Status.REJECTED, 413, 0, 1000)]
    lost = [sample(at, status=Status.FAILED) for at in range(6)]
    fine = [normal(at, at + 100) for at in range(0, 600, 10)]
    assert not only([*bad, *fine, *lost]).is_slo_met_beside
    assert only([*bad, *fine, *lost], success_rate=0.9).is_slo_met_beside


def test_a_slow_request_beside_may_be_chance_and_several_are_not() -> None:
    bad = [hostile(Anomaly.OVERLONG_TEXT, Status.REJECTED, 413, 0, 10_000)]
    slow = [normal(at, 500, ttft_ms=400) for at in range(5)]
    fine = [normal(at, at + 100) for at in range(100)]
    # were 1% of all requests slow, 1 of 101 would come up often and 5 of 105 in 0.4% of loads
    assert only([*bad, *fine, *slow[:1]]).is_slo_met_beside
    assert not only([*bad, *fine, *slow]).is_slo_met_beside


def test_nobody_beside_nobody_suffered() -> None:
    one = only([hostile(Anomaly.EMPTY_PROMPT, Status.REJECTED, 400)])
    assert one.num_beside == 0 and one.num_handled == 1


def test_the_handled_share_has_an_interval() -> None:
    def kind(num: int, good: int, is_met: bool) -> AnomalyKind:
        return AnomalyKind(kind="empty_prompt", num=num, num_as_expected=good, num_beside=9,
                           is_slo_met_beside=is_met, outcomes={})  # fmt: skip

    share = handled([kind(60, 60, True), kind(40, 39, True)])
    assert share.value == pytest.approx(0.99)
    # Clopper-Pearson of 99 of 100, from tables
    assert (share.low, share.high) == (pytest.approx(0.9455, abs=1e-4),
                                       pytest.approx(0.9997, abs=1e-4))  # fmt: skip
    assert handled([kind(50, 50, True), kind(50, 50, False)]).value == 0.5
    assert handled([]).value is None


def test_every_request_is_accounted_for() -> None:
    samples = [
        *[normal(at, at + 100) for at in range(5)],
        dataclasses.replace(sample(status=Status.FAILED), error=SampleError.RESET),
        dataclasses.replace(sample(status=Status.FAILED), error=SampleError.RESET),
        dataclasses.replace(sample(status=Status.TIMEOUT), error=SampleError.DEADLINE),
        dataclasses.replace(sample(status=Status.UNSENT), error=SampleError.STOPPED),
        dataclasses.replace(
            hostile(Anomaly.MALFORMED_JSON, Status.REJECTED, 400), error=SampleError.BAD_REQUEST
        ),
    ]
    found = account(samples, 12)
    assert found.num_planned == sum(found.by_status.values()) == 12
    assert found.by_status == {"ok": 5, "rejected": 1, "failed": 2, "timeout": 1, "unsent": 3}
    assert found.by_error == {"reset": 2, "deadline": 1, "stopped": 1}
    assert found.num_hostile == 1


def test_more_samples_than_were_planned_is_a_fault() -> None:
    with pytest.raises(ValueError, match="2 samples of 1"):
        account([normal(0, 1), normal(0, 1)], 1)
