"""Part of profile: when requests are meant to be sent."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, model_validator

from dstune.errors import ProfileError
from dstune.profile.fields import MOST, Count, Positive, Record, Seconds, problem
from dstune.profile.trace import Trace, TraceRow, clipped, find_trace, read_trace


class ArrivalKind(StrEnum):
    """When requests are meant to be sent."""

    ALL_AT_ONCE = "all_at_once"
    CONSTANT = "constant"
    POISSON = "poisson"
    GAMMA = "gamma"
    RAMP = "ramp"  # Poisson, from one rate to another, linear in time
    STEP = "step"  # Poisson, one rate after the other for equal times
    TRACE = "trace"
    CONCURRENCY = "concurrency"  # the closed loop: the next when one ends


_NEEDED: dict[ArrivalKind, tuple[str, ...]] = {
    ArrivalKind.ALL_AT_ONCE: (),
    ArrivalKind.CONSTANT: ("rate_per_s",),
    ArrivalKind.POISSON: ("rate_per_s",),
    ArrivalKind.GAMMA: ("rate_per_s", "cv"),
    ArrivalKind.RAMP: ("rate_per_s", "end_rate_per_s"),
    ArrivalKind.STEP: ("rates_per_s",),
    ArrivalKind.TRACE: ("path",),
    ArrivalKind.CONCURRENCY: ("concurrency",),
}
_OPTIONAL = {ArrivalKind.TRACE: ("speed", "clip_tokens", "digest")}
_KEYS = ("rate_per_s", "end_rate_per_s", "rates_per_s", "concurrency", "cv", "path", "speed",
         "clip_tokens", "digest")  # fmt: skip


class Arrivals(Record):
    """The arrival process.

    Rates count requests. Where a workload has sessions, only their first turns arrive by this
    process, at the rate over the mean number of turns; each later turn follows the answer before
    it, so that over a load much longer than a session requests arrive at the rate.
    `concurrency` counts sessions in flight, their think time included.

    `cv` is the coefficient of variation of the gaps of a gamma burst. A ramp goes from
    `rate_per_s` to `end_rate_per_s` over the whole load; a step gives each of `rates_per_s` an
    equal share of the time.

    A trace brings times, lengths and shared prefixes, `speed` times as fast as recorded. A
    relative `path` is sought beside the profile, then in the working folder. `clip_tokens` cuts
    the end off prompts so that no request is longer; without it a trace with a request longer
    than the model can take is refused. `digest` (SHA-256) is filled in, and must hold if given.

    `duration` in place of `workload.num_requests`: as many requests as the rate makes in that
    time, or the rows of a trace that fall into it; a closed loop ends when it is over.
    """

    kind: ArrivalKind = ArrivalKind.ALL_AT_ONCE
    rate_per_s: Positive | None = None
    end_rate_per_s: Positive | None = None
    rates_per_s: tuple[Positive, ...] | None = None
    concurrency: Count | None = None
    cv: Positive | None = None
    path: Annotated[str, Field(min_length=1)] | None = None
    speed: Positive | None = None  # unset: as recorded
    clip_tokens: Annotated[int, Field(strict=True, ge=2, le=MOST)] | None = None
    digest: str | None = None
    duration: Seconds | None = None  # seconds

    @model_validator(mode="before")
    @classmethod
    def _spellings(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, dict):
            return data
        if isinstance(data.get("path"), str) and data["path"]:
            folder: Path | None = (info.context or {}).get("folder")
            try:
                data = {**data, "path": str(find_trace(data["path"], folder))}
            except (ProfileError, OSError, ValueError) as error:
                raise problem("path", str(error)) from None
        if "burstiness" in data:  # vLLM's word: the shape of the gamma distribution
            burstiness = data["burstiness"]
            if "cv" in data:
                raise problem("burstiness", "says the same as cv (1 / sqrt(burstiness)); give one")
            if isinstance(burstiness, bool) or not isinstance(burstiness, int | float):
                raise problem("burstiness", f"must be a number, not {burstiness!r}")
            if not 0 < burstiness < 1e6:
                raise problem("burstiness", f"must be above 0, not {burstiness!r}")
            rest = {key: value for key, value in data.items() if key != "burstiness"}
            return {**rest, "cv": float(burstiness) ** -0.5}
        return data

    @model_validator(mode="after")
    def _fits_kind(self) -> Arrivals:
        needed = _NEEDED[self.kind]
        for key in _KEYS:
            is_given = getattr(self, key) is not None
            if key in needed and not is_given:
                raise problem("", f"kind {self.kind} needs '{key}'")
            if is_given and key not in (*needed, *_OPTIONAL.get(self.kind, ())):
                raise problem(key, f"has no meaning for kind {self.kind}")
        if self.rates_per_s is not None and not self.rates_per_s:
            raise problem("rates_per_s", "lists no rate")
        if self.duration is not None and self.kind is ArrivalKind.ALL_AT_ONCE:
            raise problem("duration", "has no meaning when all arrive at once; give a rate")
        if self.kind is ArrivalKind.TRACE:
            self._check_trace()
        return self

    def _check_trace(self) -> None:
        try:
            trace = self._read()
        except ProfileError as error:
            raise problem("path", str(error)) from None
        if self.digest is None:
            object.__setattr__(self, "digest", trace.digest)  # frozen, and not yet out of here

    @property
    def mean_rate_per_s(self) -> float | None:
        """Requests per second over the whole load; None where no rate is asked for."""
        if self.kind is ArrivalKind.RAMP:
            assert self.rate_per_s is not None and self.end_rate_per_s is not None
            return (self.rate_per_s + self.end_rate_per_s) / 2
        if self.rates_per_s is not None:
            return math.fsum(self.rates_per_s) / len(self.rates_per_s)
        return self.rate_per_s

    def expected_requests(self) -> int | None:
        """How many requests the rate makes in `duration`; None without either."""
        if self.duration is None or self.mean_rate_per_s is None:
            return None
        return max(1, round(self.duration * self.mean_rate_per_s))

    def rows(self) -> list[TraceRow]:
        """The rows of the trace at its speed, clipped, and within `duration`.

        Raises `ProfileError` when the file is no longer what it was.
        """
        speed = self.speed or 1.0
        until_ns = math.inf if self.duration is None else self.duration * 1e9
        found = []
        for row in self._read().rows:
            offset_ns = round(row.offset_ns / speed)
            if offset_ns >= until_ns:
                break
            kept = row if self.clip_tokens is None else clipped(row, self.clip_tokens)
            found.append(TraceRow(row.place, offset_ns, kept.prompt_tokens, kept.output_tokens,
                                  kept.hash_ids))  # fmt: skip
        return found

    def describe(self) -> str:
        """The process in a few words."""
        rate = self.rate_per_s
        if self.kind is ArrivalKind.ALL_AT_ONCE:
            return "all at once"
        if self.kind is ArrivalKind.CONCURRENCY:
            return f"{self.concurrency} in flight"
        if self.kind is ArrivalKind.RAMP:
            return f"ramp arrivals from {rate:g} to {self.end_rate_per_s:g}/s"
        if self.kind is ArrivalKind.STEP:
            return f"step arrivals at {', '.join(f'{one:g}' for one in self.rates_per_s or ())}/s"
        if self.kind is ArrivalKind.TRACE:
            speed = f" at {self.speed:g} times its speed" if self.speed else ""
            cut = f", cut to {self.clip_tokens} tokens" if self.clip_tokens else ""
            return f"as in the trace {Path(self.path or '').name}{speed}{cut}"
        return f"{self.kind} arrivals at {rate:g}/s"

    def _read(self) -> Trace:
        assert self.path is not None
        trace = read_trace(Path(self.path))
        if self.digest not in (None, trace.digest):
            raise ProfileError(f"{self.path} has changed: its digest is {trace.digest} now")
        return trace
