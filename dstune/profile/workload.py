"""Part of profile: what is asked, how long, how often, and in sessions of how many turns."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, PrivateAttr, model_validator

from dstune.profile.fields import Count, Positive, Record, problem
from dstune.profile.trace import TraceRow


class Distribution(StrEnum):
    """How a length is drawn."""

    CONSTANT = "constant"
    UNIFORM = "uniform"
    LOGNORMAL = "lognormal"
    TRACE = "trace"  # not drawn: the rows of a trace bring it


_LENGTH_KEYS: dict[Distribution, tuple[set[str], set[str]]] = {
    Distribution.CONSTANT: ({"value"}, {"value"}),
    Distribution.UNIFORM: ({"min", "max"}, {"min", "max"}),
    Distribution.LOGNORMAL: ({"median", "sigma", "max"}, {"median", "sigma", "max", "min"}),
    Distribution.TRACE: (set(), {"min", "max"}),
}


class Length(Record):
    """A length in tokens; a plain number is a constant one.

    A log-normal one needs `max`, so that the longest request is known before anything is
    started; draws are clipped to `min` and `max`. The bounds of a trace are filled in from it.
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

    @property
    def typical(self) -> float:
        """The median length, in tokens."""
        if self.distribution is Distribution.UNIFORM:
            assert self.min is not None and self.max is not None
            return (self.min + self.max) / 2
        return self.median if self.median is not None else float(self.longest)


ONE = Length(distribution=Distribution.CONSTANT, value=1)


class Workload(Record):
    """What is asked: how long, how often, from which seed.

    With `turns` above 1 requests come in sessions: turn k asks all earlier prompts of its session
    and their answers, and its own prompt on top. The answers that later turns carry are planned
    ones, cut from the corpus like the prompts, and not what the model said, so that every run
    asks the same. `num_requests` counts requests, whatever their turn.

    `anomalies` is the share of requests that are hostile, each kind of
    `dstune.measure.anomalies` about equally often. They take the place of normal requests and are
    sent over HTTP only.
    """

    prompt_tokens: Length
    output_tokens: Length
    num_requests: Count = 64  # per repetition; a duration or a trace brings its own
    anomalies: Annotated[float, Field(strict=True, ge=0, lt=1, allow_inf_nan=False)] = 0.05
    seed: Annotated[int, Field(strict=True, ge=0, lt=1 << 32)] = 0
    shared_prefix_tokens: Annotated[int, Field(strict=True, ge=0, le=1 << 24)] = 0  # before each
    turns: Length = ONE  # requests of a session, one after the other
    # mean of the exponential pause between an answer and the session's next request
    think_time_s: Annotated[float, Field(strict=True, ge=0, le=1e6, allow_inf_nan=False)] = 0.0
    _longest_row: TraceRow | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _fits_together(self) -> Workload:
        if self.turns.distribution is Distribution.TRACE:
            raise problem("turns", "the rows of a trace have no turns; use another distribution")
        if self.think_time_s and not self.has_sessions:
            raise problem("think_time_s", "has a meaning only beside turns above 1")
        return self

    @property
    def has_sessions(self) -> bool:
        """Whether a session may have more than one request."""
        return self.turns.longest > 1

    @property
    def longest_request_tokens(self) -> int:
        """Tokens of the longest request that can be drawn: all that it carries, and its output."""
        if self._longest_row is not None:
            return self._longest_row.total_tokens
        turn = self.prompt_tokens.longest + self.output_tokens.longest
        return self.shared_prefix_tokens + self.turns.longest * turn

    def describe_longest(self) -> str:
        """The figures behind the longest request, as half a sentence."""
        if self._longest_row is not None:
            row = self._longest_row
            return (
                f"the longest request takes {row.total_tokens} tokens ({row.place}: "
                f"{row.prompt_tokens} prompt + {row.output_tokens} output); "
                "arrivals.clip_tokens cuts longer prompts"
            )
        prefix = f"{self.shared_prefix_tokens} shared + " if self.shared_prefix_tokens else ""
        turn = f"{self.prompt_tokens.longest} prompt + {self.output_tokens.longest} output"
        if self.has_sessions:
            turn = f"{self.turns.longest} turns of {turn}"
        return f"the longest request takes {self.longest_request_tokens} tokens ({prefix}{turn})"

    def of_rows(self, rows: list[TraceRow]) -> Workload:
        """This workload with the number and the bounds that the rows of a trace bring."""
        prompts = [row.prompt_tokens for row in rows]
        outputs = [row.output_tokens for row in rows]
        filled = self.model_copy(
            update={
                "prompt_tokens": _bounds(prompts),
                "output_tokens": _bounds(outputs),
                "num_requests": len(rows),
            }
        )
        filled._longest_row = max(rows, key=lambda row: row.total_tokens)
        return filled


def _bounds(lengths: list[int]) -> Length:
    return Length(distribution=Distribution.TRACE, min=min(lengths), max=max(lengths))
