"""Runs of the engine in this process, prefill and decode timed apart by its own steps."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dstune.engine.config import EngineConfig
from dstune.engine.engine import Engine, StepOutput
from dstune.engine.request import SamplingParams
from dstune.model.loading.open import open_checkpoint

PROMPT_TOKENS = 128
OUTPUT_TOKENS = 64


@dataclass(frozen=True)
class Rates:
    """Tokens per second of one batch from empty to done."""

    whole: float  # output tokens, prefill counted
    decode: float  # output tokens of steps without prefill
    prefill: float  # prompt tokens of steps without decode


AnEngine = TypeVar("AnEngine", bound=Engine)


def open_engine(
    model: str,
    precision: str,
    kind: type[AnEngine] = Engine,  # type: ignore[assignment]
    **knobs: object,
) -> AnEngine:
    """An engine without a prefix cache, so that runs repeat."""
    values = {"precision": precision, "max_model_len": 256, "enable_prefix_caching": False, **knobs}
    return kind(open_checkpoint(model), EngineConfig.from_knobs(values))


def run_batch(
    engine: Engine, batch: int, after_step: Callable[[StepOutput], None] = lambda step: None
) -> list[StepOutput]:
    """Generate OUTPUT_TOKENS for each of `batch` random prompts; every step."""
    vocabulary = engine.checkpoint.shape.vocab_size
    for index in range(batch):
        prompt = tuple(random.randrange(20, vocabulary) for _ in range(PROMPT_TOKENS))
        engine.add(str(index), prompt, SamplingParams(max_tokens=OUTPUT_TOKENS, ignore_eos=True))
    steps = []
    while engine.has_requests:
        step = engine.step()
        assert step is not None
        steps.append(step)
        after_step(step)
    return steps


def engine_rates(engine: Engine, batch: int) -> Rates:
    """Rates of one run."""
    steps = run_batch(engine, batch)
    seconds = (steps[-1].end_ns - steps[0].start_ns) / 1e9
    decode = [one for one in steps if not one.num_prefill_tokens]
    prefill = [one for one in steps if not one.num_decode_tokens]
    return Rates(
        whole=batch * OUTPUT_TOKENS / seconds,
        decode=_rate(sum(one.num_decode_tokens for one in decode), decode),
        prefill=_rate(sum(one.num_prefill_tokens for one in prefill), prefill),
    )


def _rate(tokens: int, steps: list[StepOutput]) -> float:
    return tokens / (sum(one.end_ns - one.start_ns for one in steps) / 1e9)
