"""Part of profile: a scenario as frozen, validated objects, which hold every default.

`workload.py` and `arrivals.py` hold the two large sections. `load.py` reads YAML into these;
everything behind them relies on what is checked here.
"""

from __future__ import annotations

import difflib
import math
import re
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from dstune.errors import KnobError
from dstune.knobs import KnobValue, check_value
from dstune.profile.arrivals import ArrivalKind, Arrivals
from dstune.profile.fields import MOST, Count, Record, Seconds, problem, problems
from dstune.profile.workload import Distribution, Length, Workload

__all__ = [
    "LATENCY_METRICS",
    "LOADTEST_DURATION_S",
    "TARGETS",
    "ArrivalKind",
    "Arrivals",
    "Budget",
    "Distribution",
    "Length",
    "Objective",
    "Profile",
    "Scenario",
    "Slo",
    "SloLimit",
    "Workload",
]

LATENCY_METRICS = ("ttft", "service_ttft", "tpot", "itl", "e2e")
"""The latencies that an SLO may bound; a test holds them equal to those of `stats.metrics`."""

LOADTEST_DURATION_S = 300.0
"""How long a load test lasts unless the profile or the command says."""

_LIMIT = re.compile(rf"({'|'.join(LATENCY_METRICS)})_p([1-9]\d?(?:\.\d{{1,3}})?)_ms")


class Scenario(StrEnum):
    """What the load is for; decides the objective unless the profile names one."""

    LOW_LATENCY = "low_latency"
    HIGH_THROUGHPUT = "high_throughput"
    MIXED = "mixed"


class Objective(StrEnum):
    """What is made as good as it gets among configurations that meet the SLO."""

    GOODPUT_LATENCY = "goodput_latency"  # goodput, ties by the most room below the SLO
    OUTPUT_THROUGHPUT = "output_throughput"  # output tokens per second
    GOODPUT_THROUGHPUT = "goodput_throughput"  # goodput, ties by output tokens per second


class SloLimit(Record):
    """One latency promise: the `percentile`-th percentile of `metric` is at most `limit_ms`."""

    key: str
    metric: str
    percentile: float
    limit_ms: float


class Slo(Record):
    """The promise: latency limits in ms by key (`ttft_p99_ms`), and a share of successes.

    0.99 by default: a configuration that loses requests is not recommended even when no SLO is
    written down, and 299 clean requests, as many as for a p99, suffice to claim it.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    __pydantic_extra__: dict[str, float] = Field(init=False)
    success_rate: Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)] = 0.99

    @model_validator(mode="before")
    @classmethod
    def _limits_are_known(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        checked = {str(key): _limit_problem(key, value) for key, value in data.items()}
        wrong = [(key, why) for key, why in checked.items() if why]
        if wrong:
            raise problems(wrong)
        return data

    @property
    def limits(self) -> tuple[SloLimit, ...]:
        """The latency limits in the order in which they are written."""
        found = []
        for key, limit_ms in (self.__pydantic_extra__ or {}).items():
            match = _LIMIT.fullmatch(key)
            assert match is not None
            metric, percentile = match[1], float(match[2])
            found.append(SloLimit(key=key, metric=metric, percentile=percentile, limit_ms=limit_ms))
        return tuple(found)


def _limit_problem(key: object, value: object) -> str:
    """What is wrong with one line of an SLO, or an empty text."""
    if key == "success_rate":
        return ""
    if not isinstance(key, str) or not _LIMIT.fullmatch(key):
        known = [f"{metric}_p{p}_ms" for metric in LATENCY_METRICS for p in (50, 90, 95, 99)]
        near = difflib.get_close_matches(str(key), [*known, "success_rate"], n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"for example {known[3]}"
        return f"unknown key; {hint}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"must be a number of milliseconds, not {value!r}"
    return "" if 0 < value < 1e9 else f"must be above 0 and below 1e9 ms, not {value!r}"


class Budget(Record):
    """What a sweep may cost."""

    trials: Count | None = None  # unset: the whole space
    wall: Seconds | None = None
    repetitions: Annotated[int, Field(strict=True, ge=1, le=100)] = 2


def _knob(name: object, value: object) -> KnobValue:
    """One knob's value; raises `KnobError`."""
    if not isinstance(name, str):
        raise KnobError(f"a knob's name must be text, not {name!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise KnobError(f"{name} must be a finite number, not {value!r}")
    return check_value(name, value)


def _knobs(data: Any) -> Any:
    if not isinstance(data, dict):
        raise problem("", f"must be a mapping of knobs to values, not {data!r}")
    checked, wrong = {}, []
    for name, value in data.items():
        try:
            checked[name] = _knob(name, value)
        except KnobError as error:
            wrong.append((str(name), str(error)))
    if wrong:
        raise problems(wrong)
    return checked


def _search(data: Any) -> Any:
    if not isinstance(data, dict):
        raise problem("", f"must be a mapping of knobs to lists of values, not {data!r}")
    space, wrong = {}, []
    for name, values in data.items():
        checked = []
        for at, value in enumerate(values if isinstance(values, list | tuple) else ()):
            try:
                checked.append(_knob(name, value))
            except KnobError as error:
                wrong.append((f"{name}.{at}", str(error)))
        if isinstance(values, list | tuple) and not values:
            wrong.append((str(name), "lists no value to try"))
        elif not checked and not wrong:
            try:
                _knob(name, values)  # an unknown knob is the better message
                wrong.append((str(name), f"must be a list of values to try, such as [{values}]"))
            except KnobError as error:
                wrong.append((str(name), str(error)))
        if len(set(checked)) != len(checked):
            wrong.append((str(name), f"lists a value twice: {checked}"))
        space[name] = tuple(checked)
    if wrong:
        raise problems(wrong)
    return space


Knobs = Annotated[dict[str, KnobValue], BeforeValidator(_knobs)]
Search = Annotated[dict[str, tuple[KnobValue, ...]], BeforeValidator(_search)]

_OBJECTIVES = {
    Scenario.LOW_LATENCY: Objective.GOODPUT_LATENCY,
    Scenario.HIGH_THROUGHPUT: Objective.OUTPUT_THROUGHPUT,
    Scenario.MIXED: Objective.GOODPUT_THROUGHPUT,
}


TARGETS = ("embedded", "vllm", "sglang")


class Profile(Record):
    """A scenario with its promise, and what a sweep may turn."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    scenario: Scenario = Scenario.MIXED
    model: Annotated[str, Field(min_length=1)] = "tiny-deepseek"
    weights: Literal["auto", "random"] = "auto"
    target: str = "embedded"
    workload: Workload
    arrivals: Arrivals = Arrivals()
    slo: Slo = Slo()
    objective: Objective | None = None  # unset: by scenario
    knobs: Knobs = Field(default_factory=dict)  # fixed in every trial; a preset may override one
    search: Search = Field(default_factory=dict)
    presets: tuple[Knobs, ...] = ()  # tried besides the grid
    budget: Budget = Budget()
    driver: Literal["http", "offline"] = "http"

    @field_validator("target")
    @classmethod
    def _is_target(cls, value: str) -> str:
        if value in TARGETS or value.startswith(("http://", "https://")):
            return value
        known = ", ".join(TARGETS)
        raise PydanticCustomError(
            "target",
            "must be {known} or an http(s) URL, not '{value}'",
            {"known": known, "value": value},
        )

    @property
    def is_target_url(self) -> bool:
        """Whether the target is a server that somebody else started."""
        return self.target.startswith(("http://", "https://"))

    @property
    def aim(self) -> Objective:
        """The objective in force."""
        return self.objective or _OBJECTIVES[self.scenario]

    @model_validator(mode="before")
    @classmethod
    def _trace_brings_lengths(cls, data: Any) -> Any:
        """Marks the lengths of a trace as such, so that they need not be written."""
        arrivals = data.get("arrivals") if isinstance(data, dict) else None
        if not isinstance(arrivals, dict) or arrivals.get("kind") != ArrivalKind.TRACE:
            return data
        workload = data.get("workload", {})
        if not isinstance(workload, dict):
            return data
        brought = {"prompt_tokens": {"distribution": "trace"},
                   "output_tokens": {"distribution": "trace"}}  # fmt: skip
        return {**data, "workload": {**brought, **workload}}

    @model_validator(mode="after")
    def _counts_its_requests(self) -> Profile:
        """Fills in what a duration or a trace says of the number of requests and their lengths."""
        is_trace = self.arrivals.kind is ArrivalKind.TRACE
        work = self.workload
        for key in ("prompt_tokens", "output_tokens"):
            if (getattr(work, key).distribution is Distribution.TRACE) is not is_trace:
                why = "is brought by the trace" if is_trace else "needs arrivals of kind trace"
                raise problem(f"workload.{key}", why)
        has_number = "num_requests" in work.model_fields_set
        if is_trace:
            filled = self._of_trace(work.num_requests if has_number else None)
        else:
            expected = self.arrivals.expected_requests()
            if expected is None or expected == work.num_requests:
                return self
            if has_number:
                raise problem(
                    "workload.num_requests",
                    f"is {work.num_requests}, but the rate makes {expected} in arrivals.duration; "
                    "give one of the two",
                )
            if expected > MOST:
                raise problem("arrivals.duration", f"makes {expected:,} requests, {MOST:,} at most")
            filled = work.model_copy(update={"num_requests": expected})
        object.__setattr__(self, "workload", filled)  # frozen, and not yet out of here
        return self

    def _of_trace(self, num_requests: int | None) -> Workload:
        """The workload that the first rows of the trace make, all of them unless told."""
        rows = self.arrivals.rows()
        if num_requests is not None and num_requests > len(rows):
            message = f"is {num_requests}, but the trace has {len(rows)} rows"
            raise problem("workload.num_requests", message)
        for key in ("shared_prefix_tokens", "think_time_s"):
            if getattr(self.workload, key):
                raise problem(f"workload.{key}", "has no meaning for arrivals of kind trace")
        if self.workload.has_sessions:
            raise problem("workload.turns", "the rows of a trace stand for themselves: leave it 1")
        return self.workload.of_rows(rows[:num_requests])

    @model_validator(mode="after")
    def _fits_together(self) -> Profile:
        wrong = [(f"search.{name}", "is fixed under knobs; it can stand in one place")
                 for name in self.search if name in self.knobs]  # fmt: skip
        longest = self.workload.longest_request_tokens
        lengths = [("knobs.max_model_len", self.knobs.get("max_model_len"))]
        lengths += [(f"search.max_model_len.{at}", value)
                    for at, value in enumerate(self.search.get("max_model_len", ()))]  # fmt: skip
        lengths += [(f"presets.{at}.max_model_len", preset.get("max_model_len"))
                    for at, preset in enumerate(self.presets)]  # fmt: skip
        for key, value in lengths:
            if isinstance(value, int) and longest > value:
                wrong.append((key, f"is {value}, but {self.describe_longest()}"))
        if wrong:
            raise problems(wrong)
        return self

    def describe_longest(self) -> str:
        """The figures behind a request that does not fit, as half a sentence."""
        return self.workload.describe_longest()
