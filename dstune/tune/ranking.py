"""Tune: which of several measured configurations is better, by promise first and aim second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from dstune.measure.record import Figures, SloCheck
from dstune.profile.model import Objective

TIE_SHARE = 0.01
"""Goodputs that differ by less count as equal: one request more or less is no difference."""

MAIN_FIGURE = {
    Objective.GOODPUT_LATENCY: "goodput_per_s",
    Objective.OUTPUT_THROUGHPUT: "output_tokens_per_s",
    Objective.GOODPUT_THROUGHPUT: "goodput_per_s",
}


class Measurable(Protocol):
    """A search trial or a confirmed configuration."""

    @property
    def figures(self) -> Figures: ...
    @property
    def slo(self) -> tuple[SloCheck, ...]: ...


M = TypeVar("M", bound=Measurable)


def meets(candidate: Measurable) -> bool:
    """Whether every promise is met by its point estimate."""
    return all(check.is_met for check in candidate.slo)


def ranked(candidates: Sequence[M], aim: Objective) -> list[M]:
    """Best first: those that meet the SLO by the aim, then the others by how near they come."""
    met = [one for one in candidates if meets(one)]
    missed = [one for one in candidates if not meets(one)]
    best_goodput = max((_value(one, "goodput_per_s") for one in met), default=0.0)

    def merit(one: M) -> tuple[float, float]:
        if aim is Objective.OUTPUT_THROUGHPUT:
            return (_value(one, "output_tokens_per_s"), _value(one, "goodput_per_s"))
        steps = _value(one, "goodput_per_s") / best_goodput if best_goodput else 0.0
        goodput = round(steps / TIE_SHARE)
        if aim is Objective.GOODPUT_LATENCY:
            return (goodput, -worst_ratio(one))
        return (goodput, _value(one, "output_tokens_per_s"))

    return sorted(met, key=merit, reverse=True) + sorted(missed, key=worst_ratio)


def worst_ratio(candidate: Measurable) -> float:
    """The worst of all promises as measured / limit: above 1 is a miss, below 1 is room.

    Without a latency promise, the p99 of TTFT in seconds stands in, so that less is better.
    """
    ratios = [_ratio(check) for check in candidate.slo if check.key != "success_rate"]
    lost = [_ratio(check) for check in candidate.slo if check.key == "success_rate"]
    if not ratios:
        ratios = [_value(candidate, "ttft_p99_ms") / 1e3]
    return max([*ratios, *(one for one in lost if one > 1)])


def _ratio(check: SloCheck) -> float:
    if check.measured is None:
        return 0.0 if check.is_met else float("inf")
    if check.key == "success_rate":
        return check.limit / check.measured if check.measured else float("inf")
    return check.measured / check.limit


def _value(candidate: Measurable, figure: str) -> float:
    estimate = candidate.figures.get(figure)
    return estimate.value if estimate is not None and estimate.value is not None else 0.0
