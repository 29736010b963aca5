"""Part of profile: a scenario as frozen, validated objects, and the only place with defaults.

`load.py` reads YAML into these; everything behind them relies on what is checked here.
"""

from __future__ import annotations

import difflib
import math
import re
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from dstune.errors import KnobError
from dstune.knobs import KnobValue, check_value
from dstune.profile.durations import parse_duration

Count = Annotated[int, Field(strict=True, ge=1, le=1 << 24)]
Positive = Annotated[float, Field(strict=True, gt=0, le=1e9, allow_inf_nan=False)]

LATENCY_METRICS = ("ttft", "service_ttft", "tpot", "itl", "e2e")
"""The latencies that an SLO may bound; a test holds them equal to those of `stats.metrics`."""

_LIMIT = re.compile(rf"({'|'.join(LATENCY_METRICS)})_p([1-9]\d?(?:\.\d{{1,3}})?)_ms")


def problem(key: str, message: str) -> PydanticCustomError:
    """An error at `key` below the object that is being validated."""
    return problems([(key, message)])


def problems(found: list[tuple[str, str]]) -> PydanticCustomError:
    """Several errors of one object, each with its key."""
    message = "; ".join(f"{key}: {what}" for key, what in found)
    return PydanticCustomError("dstune", "{message}", {"message": message, "problems": found})


class Record(BaseModel):
    """What every part of a profile is: frozen, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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


class Distribution(StrEnum):
    """How a length is drawn."""

    CONSTANT = "constant"
    UNIFORM = "uniform"
    LOGNORMAL = "lognormal"


_LENGTH_KEYS = {
    Distribution.CONSTANT: ({"value"}, {"value"}),
    Distribution.UNIFORM: ({"min", "max"}, {"min", "max"}),
    Distribution.LOGNORMAL: ({"median", "sigma", "max"}, {"median", "sigma", "max", "min"}),
}


class Length(Record):
    """A length in tokens; a plain number is a constant one.

    A log-normal one needs `max`, so that the longest request is known before anything is
    started; draws are clipped to `min` and `max`.
    """

    distribution: Distribution
    value: Count | None = None
    median: Positive | None = None
    sigma: Positive | None = None
    min: Count | None = None
    max: Count | None = None

    @model_validator(mode="before")
    @classmethod
    def _plain_number(cls, data: Any) -> Any:
        if isinstance(data, dict | Length):
            return data
        if isinstance(data, bool) or not isinstance(data, int):
            raise problem("", f"must be a whole number or a distribution, not {data!r}")
        if data < 1:
            raise problem("", f"must be at least 1, not {data}")
        return {"distribution": "constant", "value": data}

    @model_validator(mode="after")
    def _fits_distribution(self) -> Length:
        needed, allowed = _LENGTH_KEYS[self.distribution]
        given = {name for name in ("value", "median", "sigma", "min", "max")
                 if getattr(self, name) is not None}  # fmt: skip
        for key in sorted(needed - given):
            raise problem("", f"distribution {self.distribution} needs '{key}'")
        for key in sorted(given - allowed):
            raise problem(key, f"has no meaning for distribution {self.distribution}")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise problem("min", f"({self.min}) must not be above max ({self.max})")
        if self.median is not None and self.max is not None and self.median > self.max:
            raise problem("median", f"({self.median:g}) must not be above max ({self.max})")
        return self

    @property
    def longest(self) -> int:
        """The longest length that can be drawn, in tokens."""
        longest = self.value if self.distribution is Distribution.CONSTANT else self.max
        assert longest is not None
        return longest


class Workload(Record):
    """What is asked: how long, how often, from which seed."""

    prompt_tokens: Length
    output_tokens: Length
    num_requests: Count = 64  # per repetition
    anomalies: Annotated[float, Field(strict=True, ge=0, lt=1, allow_inf_nan=False)] = 0.0
    seed: Annotated[int, Field(strict=True, ge=0, lt=1 << 32)] = 0
    shared_prefix_tokens: Annotated[int, Field(strict=True, ge=0, le=1 << 24)] = 0  # before each

    @property
    def longest_request_tokens(self) -> int:
        """Shared prefix, prompt and output of the longest request that can be drawn."""
        return self.shared_prefix_tokens + self.prompt_tokens.longest + self.output_tokens.longest


class ArrivalKind(StrEnum):
    """When requests are meant to be sent."""

    ALL_AT_ONCE = "all_at_once"
    CONSTANT = "constant"
    POISSON = "poisson"
    GAMMA = "gamma"
    CONCURRENCY = "concurrency"  # the closed loop: the next when one ends


_ARRIVAL_KEYS = {
    ArrivalKind.ALL_AT_ONCE: (),
    ArrivalKind.CONSTANT: ("rate_per_s",),
    ArrivalKind.POISSON: ("rate_per_s",),
    ArrivalKind.GAMMA: ("rate_per_s", "cv"),
    ArrivalKind.CONCURRENCY: ("concurrency",),
}
_LATER_KINDS = ("ramp", "step", "trace")


class Arrivals(Record):
    """The arrival process; `cv` is the coefficient of variation of the gaps of a gamma burst."""

    kind: ArrivalKind = ArrivalKind.ALL_AT_ONCE
    rate_per_s: Positive | None = None
    concurrency: Count | None = None
    cv: Positive | None = None

    @model_validator(mode="before")
    @classmethod
    def _spellings(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if data.get("kind") in _LATER_KINDS:
            message = f"'{data['kind']}' is known but not built yet; use {', '.join(ArrivalKind)}"
            raise problem("kind", message)
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
        needed = _ARRIVAL_KEYS[self.kind]
        for key in ("rate_per_s", "concurrency", "cv"):
            is_given = getattr(self, key) is not None
            if key in needed and not is_given:
                raise problem("", f"kind {self.kind} needs '{key}'")
            if is_given and key not in needed:
                raise problem(key, f"has no meaning for kind {self.kind}")
        return self


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
    wall: Annotated[float | None, BeforeValidator(lambda v: _wall(v))] = None  # seconds
    repetitions: Annotated[int, Field(strict=True, ge=1, le=100)] = 2


def _wall(value: object) -> float | None:
    if value is None:
        return None
    try:
        return parse_duration(value)
    except ValueError as error:
        raise problem("", str(error)) from None


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
    knobs: Knobs = {}  # fixed in every trial; a preset may override one
    search: Search = {}
    presets: tuple[Knobs, ...] = ()  # tried besides the grid
    budget: Budget = Budget()
    driver: Literal["offline"] = "offline"

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
    def aim(self) -> Objective:
        """The objective in force."""
        return self.objective or _OBJECTIVES[self.scenario]

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
        work = self.workload
        prefix = f"{work.shared_prefix_tokens} shared + " if work.shared_prefix_tokens else ""
        return (
            f"the longest request takes {work.longest_request_tokens} tokens "
            f"({prefix}{work.prompt_tokens.longest} prompt + {work.output_tokens.longest} output)"
        )
