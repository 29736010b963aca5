"""Part of profile: the same scenario for another time, rate or number of users.

Each returns a new profile that was validated again; `ProfileError` names what asked for it.
"""

from __future__ import annotations

from typing import Any

from dstune.errors import UsageError
from dstune.profile.load import dump_profile, restore_profile
from dstune.profile.model import ArrivalKind, Profile

_WITH_RATE = (ArrivalKind.POISSON, ArrivalKind.CONSTANT, ArrivalKind.GAMMA)


def with_duration(profile: Profile, seconds: float) -> Profile:
    """So many seconds of the same arrivals; raises `UsageError` where they have no rate."""
    arrivals = profile.arrivals
    if arrivals.kind is ArrivalKind.ALL_AT_ONCE:
        raise UsageError(
            f"a duration has no meaning where all requests of {profile.name} arrive at once: "
            "give --rate or --users beside it"
        )
    changed = {**dump_profile(profile)["arrivals"], "duration": seconds}
    return _changed(profile, f"--duration {seconds:g}", changed)


def with_rate(profile: Profile, rate_per_s: float) -> Profile:
    """An open loop at another rate: the same process where it has one rate, else Poisson."""
    _refuse_trace(profile, "--rate")
    kept = profile.arrivals if profile.arrivals.kind in _WITH_RATE else None
    changed: dict[str, Any] = {"kind": kept.kind.value if kept else "poisson",
                               "rate_per_s": rate_per_s}  # fmt: skip
    if kept is not None and kept.cv is not None:
        changed["cv"] = kept.cv
    if profile.arrivals.duration is not None:
        changed["duration"] = profile.arrivals.duration
    return _changed(profile, f"--rate {rate_per_s:g}", changed)


def with_concurrency(profile: Profile, concurrency: int) -> Profile:
    """The closed loop of so many users."""
    _refuse_trace(profile, "--users")
    changed: dict[str, Any] = {"kind": "concurrency", "concurrency": concurrency}
    if profile.arrivals.duration is not None:
        changed["duration"] = profile.arrivals.duration
    return _changed(profile, f"--users {concurrency}", changed)


def _changed(profile: Profile, name: str, arrivals: dict[str, Any]) -> Profile:
    """The profile with other arrivals; a number of requests that a duration made is made again."""
    data = {**dump_profile(profile), "arrivals": arrivals}
    if "duration" in arrivals and arrivals["kind"] != ArrivalKind.CONCURRENCY:
        del data["workload"]["num_requests"]
    return restore_profile(data, name)


def _refuse_trace(profile: Profile, flag: str) -> None:
    if profile.arrivals.kind is ArrivalKind.TRACE:
        raise UsageError(
            f"{flag} cannot be had beside a trace, which brings its own times; "
            "--set arrivals.speed=2 replays it twice as fast"
        )
