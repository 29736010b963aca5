"""Keeps the quality? Same weights, same text, same scheduler: only the precision changes.

The one place beside the serving trunk that imports the engine, because it compares what the
engine computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dstune.engine.config import EngineConfig
from dstune.engine.engine import Engine
from dstune.engine.scoring import score_windows
from dstune.errors import ModelError
from dstune.knobs import KnobValue, check_value
from dstune.load.windows import CONTEXT_TOKENS, WINDOW_TOKENS, cut_windows
from dstune.measure.record import Estimate
from dstune.model.loading.open import Checkpoint, open_checkpoint
from dstune.stats.intervals import mean_estimate

REFERENCE_KNOBS: dict[str, KnobValue] = {"enable_prefix_caching": False}

Report = Callable[[str, int, int], None]
"""Called with (variant, tokens scored, tokens to score)."""


@dataclass(frozen=True)
class Variant:
    """One precision under test."""

    precision: str
    kv_cache_dtype: str

    def __str__(self) -> str:
        return f"{self.precision}, KV {self.kv_cache_dtype}"


@dataclass(frozen=True)
class Quality:
    """How well a variant predicts the text, and how that differs from the first variant.

    `change` is relative: 0.01 is a perplexity 1% higher. Its interval comes from the windows'
    paired differences in mean log-probability.
    """

    variant: Variant
    num_tokens: int
    perplexity: float
    change: Estimate | None  # None for the first, which the others are compared with

    def as_row(self) -> dict[str, Any]:
        """The same as plain fields, for reports that must not know the engine."""
        return {
            "precision": self.variant.precision,
            "kv_cache_dtype": self.variant.kv_cache_dtype,
            "num_tokens": self.num_tokens,
            "perplexity": self.perplexity,
            "change": self.change,
        }


def plan_variants(precisions: Sequence[str], kv_cache_dtypes: Sequence[str]) -> list[Variant]:
    """The first of both, then each other precision, then each other KV element type.

    One thing changes at a time, so that a difference has one cause. Raises `KnobError` for an
    unknown value.
    """
    for name, values in (("precision", precisions), ("kv_cache_dtype", kv_cache_dtypes)):
        for value in values:
            check_value(name, value)
    first, *others = dict.fromkeys(precisions)
    dtype, *dtypes = dict.fromkeys(kv_cache_dtypes)
    return [
        Variant(first, dtype),
        *(Variant(other, dtype) for other in others),
        *(Variant(first, other) for other in dtypes),
    ]


def check_quality(
    model: str,
    variants: Sequence[Variant],
    text: str,
    num_windows: int,
    report: Report = lambda variant, done, planned: None,
    backend: str = "auto",
) -> list[Quality]:
    """Opens a model, cuts windows from a text, and compares the variants on them."""
    checkpoint = open_checkpoint(model)
    if checkpoint.tokenizer is None:
        raise ModelError(f"{model} has no tokenizer, so a text cannot be scored with it")
    windows = cut_windows(checkpoint.tokenizer.encode(text), num_windows)
    return compare_quality(checkpoint, variants, windows, report, backend)


def compare_quality(
    checkpoint: Checkpoint,
    variants: Sequence[Variant],
    windows: Sequence[Sequence[int]],
    report: Report = lambda variant, done, planned: None,
    backend: str = "auto",
) -> list[Quality]:
    """Scores the windows under each variant; the first is what the others are compared with."""
    planned = sum(len(window) - CONTEXT_TOKENS for window in windows)
    first: list[float] = []
    found: list[Quality] = []
    for variant in variants:
        config = EngineConfig.from_knobs(
            {
                **REFERENCE_KNOBS,
                "precision": variant.precision,
                "kv_cache_dtype": variant.kv_cache_dtype,
                "backend": backend,
                "max_model_len": WINDOW_TOKENS + 1,
            }
        )
        engine = Engine(checkpoint, config)

        def scored(done: int, variant: Variant = variant) -> None:
            report(str(variant), done, planned)

        losses = [
            -math.fsum(logprobs) / len(logprobs)
            for logprobs in score_windows(engine, windows, CONTEXT_TOKENS, scored)
        ]
        found.append(_quality(variant, losses, first, planned))
        first = first or losses
    return found


def _quality(variant: Variant, losses: list[float], first: list[float], num_tokens: int) -> Quality:
    change = None
    if first:
        paired = mean_estimate([mine - other for mine, other in zip(losses, first, strict=True)])
        change = Estimate(
            value=_relative(paired.value), low=_relative(paired.low), high=_relative(paired.high)
        )
    return Quality(variant, num_tokens, math.exp(math.fsum(losses) / len(losses)), change)


def _relative(difference: float | None) -> float | None:
    """A difference of mean log-probabilities as a relative change of perplexity."""
    return None if difference is None else math.expm1(difference)
