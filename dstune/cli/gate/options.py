"""Cli: the options of dstune gate that say how it decides."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dstune.errors import UsageError

if TYPE_CHECKING:
    from dstune.gate.plan import GatePlan


def plan_of(
    shares: Mapping[str, str], metrics: Sequence[str] | None, loads: int, budget: str | None,
    quality: bool, trace: bool,
) -> GatePlan:  # fmt: skip
    """The plan that the options make; raises `UsageError` naming the option."""
    from dstune.gate.plan import GatePlan
    from dstune.measure.comparison import Thresholds
    from dstune.profile.durations import parse_duration
    from dstune.stats.paired import choose_metrics

    names = ("min_effect", "margin", "max_perplexity_increase")
    values = {name: _share(option, text)
              for name, (option, text) in zip(names, shares.items(), strict=True)}  # fmt: skip
    if values["margin"] <= values["min_effect"]:
        raise UsageError(
            f"--margin {shares['--margin']} must be above --min-effect {shares['--min-effect']}: "
            "a pass would exclude less than a failure needs"
        )
    try:
        budget_s = None if budget is None else parse_duration(budget)
    except ValueError as error:
        raise UsageError(f"--budget {error}") from None
    return GatePlan(
        thresholds=Thresholds(**values),
        metrics=choose_metrics(metrics or ()),
        num_loads=loads,
        budget_s=budget_s,
        quality_windows=GatePlan.quality_windows if quality else 0,
        explains=trace,
        seed=secrets.randbelow(1 << 32),
    )


def _share(option: str, text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value < 1:
        raise UsageError(f"{option} must be a share such as 3% or 0.03, not '{text}'")
    return value
