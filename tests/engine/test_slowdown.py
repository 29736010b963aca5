"""The planted slowdown: what it waits for, on a clock that ticks at each reading."""

from __future__ import annotations

import pytest
import torch
from clocks import Scripted, Ticking

from dstune.engine.config import EngineConfig
from dstune.engine.engine import Engine
from dstune.engine.request import SamplingParams
from dstune.engine.slowdown import TARGETS, Slowdown, parse_slowdown
from dstune.errors import UsageError
from dstune.kernels.select import select
from dstune.model.loading.open import open_checkpoint

CPU = torch.device("cpu")


def test_it_waits_for_a_share_of_what_has_passed() -> None:
    # begun at 100, over at 300: a quarter more is 350; the clock is read until then
    left = Scripted([300, 310, 349, 350, 1_000])
    Slowdown("step", 0.25).stretch(100, left)
    assert left() == 1_000


def test_no_share_is_no_wait() -> None:
    clock = Scripted([300, 300, 1_000])
    Slowdown("step", 0.0).stretch(100, clock)
    assert clock() == 1_000


def test_one_operation_waits_and_computes_the_same() -> None:
    kernels, clock = select("reference", CPU), Ticking()
    slowed = Slowdown("silu_and_mul", 9.0).slowed(kernels, CPU, clock)
    x = torch.randn(2, 8)
    assert torch.equal(slowed.silu_and_mul(x), kernels.silu_and_mul(x))
    assert clock.ns == 1 + 1 + 9, "begun, over, and nine times as long"
    assert slowed.rms_norm is kernels.rms_norm


def test_a_step_leaves_the_kernels_alone() -> None:
    kernels = select("reference", CPU)
    assert Slowdown("step", 1.0).slowed(kernels, CPU, Ticking()) is kernels


def test_a_step_is_longer_by_its_share() -> None:
    durations = []
    for slowdown in (None, Slowdown("step", 100.0)):
        config = EngineConfig.from_knobs({"max_model_len": 64, "kv_cache_memory_bytes": 4 << 20})
        engine = Engine(open_checkpoint("tiny-deepseek"), config, CPU, Ticking(1000), slowdown)
        engine.add("one", (5, 6, 7), SamplingParams(max_tokens=1), arrival_ns=0)
        step = engine.step()
        assert step is not None
        durations.append(step.end_ns - step.start_ns)
    plain, slowed = durations
    # start, [over, waiting ...], end: with a tick of 1000 each reading counts
    assert plain == 1000
    assert slowed == 1000 + 100 * 1000 + 1000


@pytest.mark.parametrize("text", ["", "step", "step=", "step=-1", "step=nan", "step=inf", "step=a",
                                  "nothing=1", "pack_linear=1", "=0.5"])  # fmt: skip
def test_what_is_no_slowdown_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--slow") as refused:
        parse_slowdown(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_can_be_named(target: str) -> None:
    assert parse_slowdown(f"{target}=0.5") == Slowdown(target, 0.5)


def test_an_operation_of_a_gpu_cannot_be_slowed_by_its_cpu() -> None:
    kernels = select("reference", CPU)
    with pytest.raises(UsageError, match="needs device cpu"):
        Slowdown("rms_norm", 1.0).slowed(kernels, torch.device("cuda"), Ticking())
