"""The same scenario for another time, rate or number of users."""

from __future__ import annotations

from pathlib import Path

import pytest

from dstune.errors import ProfileError, UsageError
from dstune.profile.load import dump_profile, parse_profile, restore_profile
from dstune.profile.model import ArrivalKind, Profile
from dstune.profile.offered import with_concurrency, with_duration, with_rate


def profile(arrivals: str, work: str = "") -> Profile:
    text = f"name: x\nworkload: {{prompt_tokens: 8, output_tokens: 4{work}}}\n"
    return parse_profile("p.yaml", text + f"arrivals: {arrivals}\n")


@pytest.mark.parametrize(
    ("arrivals", "number"),
    [
        ("{kind: poisson, rate_per_s: 2, duration: 5m}", 600),
        ("{kind: constant, rate_per_s: 0.5, duration: 10}", 5),
        ("{kind: poisson, rate_per_s: 0.001, duration: 10s}", 1),
        ("{kind: ramp, rate_per_s: 2, end_rate_per_s: 20, duration: 10s}", 110),
        ("{kind: step, rates_per_s: [5, 10, 30], duration: 60s}", 900),
        ("{kind: concurrency, concurrency: 3, duration: 60s}", 64),
    ],
)
def test_a_duration_makes_the_number_of_requests(arrivals: str, number: int) -> None:
    one = profile(arrivals)
    assert one.workload.num_requests == number
    assert restore_profile(dump_profile(one)) == one


def test_with_duration_makes_it_anew() -> None:
    one = profile("{kind: poisson, rate_per_s: 2}", ", num_requests: 7")
    longer = with_duration(one, 30)
    assert (longer.workload.num_requests, longer.arrivals.duration) == (60, 30)
    assert with_duration(longer, 10).workload.num_requests == 20
    assert one.workload.num_requests == 7
    closed = with_duration(profile("{kind: concurrency, concurrency: 2}", ", num_requests: 7"), 9)
    assert (closed.workload.num_requests, closed.arrivals.duration) == (7, 9)


def test_all_at_once_has_no_duration_of_its_own() -> None:
    with pytest.raises(UsageError, match="--rate or --users"):
        with_duration(profile("{}"), 10)


def test_with_rate_keeps_a_process_that_has_one() -> None:
    for kind in ("poisson", "constant"):
        changed = with_rate(profile(f"{{kind: {kind}, rate_per_s: 2}}"), 9.5)
        assert (changed.arrivals.kind, changed.arrivals.rate_per_s) == (kind, 9.5)
    gamma = with_rate(profile("{kind: gamma, rate_per_s: 2, cv: 3}"), 9).arrivals
    assert (gamma.kind, gamma.rate_per_s, gamma.cv) == ("gamma", 9, 3)
    for other in ("{}", "{kind: concurrency, concurrency: 2}", "{kind: step, rates_per_s: [1, 2]}",
                  "{kind: ramp, rate_per_s: 1, end_rate_per_s: 3}"):  # fmt: skip
        changed = with_rate(profile(other), 9)
        assert (changed.arrivals.kind, changed.arrivals.rate_per_s) == (ArrivalKind.POISSON, 9)
        assert changed.workload.num_requests == 64


def test_with_rate_goes_on_for_the_same_time() -> None:
    changed = with_rate(profile("{kind: ramp, rate_per_s: 1, end_rate_per_s: 3, duration: 8}"), 5)
    assert (changed.workload.num_requests, changed.arrivals.duration) == (40, 8)
    assert with_concurrency(changed, 4).arrivals.duration == 8


def test_with_concurrency_is_the_closed_loop() -> None:
    changed = with_concurrency(profile("{kind: poisson, rate_per_s: 2}"), 6)
    assert changed.arrivals.kind is ArrivalKind.CONCURRENCY
    assert (changed.arrivals.concurrency, changed.arrivals.rate_per_s) == (6, None)


def test_what_makes_no_load_names_the_option() -> None:
    one = profile("{kind: poisson, rate_per_s: 2}")
    with pytest.raises(ProfileError, match=r"^--rate -1: arrivals\.rate_per_s: must be above 0"):
        with_rate(one, -1)
    with pytest.raises(ProfileError, match=r"^--users 0: arrivals\.concurrency: must be at least"):
        with_concurrency(one, 0)
    with pytest.raises(ProfileError, match=r"^--duration 0: arrivals\.duration: must be longer"):
        with_duration(one, 0)


def test_a_trace_keeps_its_own_times(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,3,4\n"
                    "2024-05-10 00:00:05,7,1\n")  # fmt: skip
    one = parse_profile("p.yaml", f"name: x\narrivals: {{kind: trace, path: {path}}}\n")
    for change in (with_rate, with_concurrency):
        with pytest.raises(UsageError, match=r"--set arrivals\.speed"):
            change(one, 3)
    short = with_duration(one, 2)
    assert (short.workload.num_requests, short.workload.prompt_tokens.longest) == (1, 3)
    assert with_duration(short, 9).workload.num_requests == 2


def test_arrivals_in_words() -> None:
    assert profile("{kind: ramp, rate_per_s: 1, end_rate_per_s: 3}").arrivals.describe() == (
        "ramp arrivals from 1 to 3/s"
    )
    assert profile("{kind: step, rates_per_s: [1, 2.5]}").arrivals.describe() == (
        "step arrivals at 1, 2.5/s"
    )
    assert profile("{kind: gamma, rate_per_s: 20, cv: 2}").arrivals.describe() == (
        "gamma arrivals at 20/s"
    )
    assert profile("{kind: concurrency, concurrency: 6}").arrivals.describe() == "6 in flight"
