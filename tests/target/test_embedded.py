"""The embedded target for real: a child process, a model, kills and errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dstune import knobs
from dstune.errors import KnobError, ModelError, TargetError, UsageError
from dstune.knobs import Restart
from dstune.load.plan import LoadPlan, PlannedRequest
from dstune.measure.sample import Status
from dstune.profile.load import parse_profile
from dstune.target.embedded import EmbeddedTarget
from dstune.target.open import open_target


def configuration(**changed: object) -> dict[str, knobs.KnobValue]:
    return knobs.complete(
        {"max_model_len": 256, "kv_cache_memory_bytes": 16 << 20, "precision": "fp32", **changed}
    )


def plan(count: int, output_tokens: int = 8, prompt: int = 20) -> LoadPlan:
    return LoadPlan(
        tuple(
            PlannedRequest(
                f"r{index}", index * 1_000_000, tuple(range(prompt)), output_tokens, seed=index
            )
            for index in range(count)
        )
    )


@pytest.fixture(scope="module", params=["http", "offline"])
def target(request: pytest.FixtureRequest) -> Iterator[EmbeddedTarget]:
    with EmbeddedTarget("tiny-deepseek", weights="random", driver=request.param) as one:
        yield one


def test_configures_by_the_cheapest_restart(target: EmbeddedTarget) -> None:
    target.configure(configuration())
    assert target.configure(configuration()).restart is None
    assert target.configure(configuration(max_num_seqs=4)).restart is Restart.LIVE
    assert target.configure(configuration(block_size=32)).restart is Restart.REBUILD
    reloaded = target.configure(configuration(precision="bf16"))
    assert reloaded.restart is Restart.RELOAD
    assert reloaded.effective["kv_cache_dtype"] == "bf16"
    assert reloaded.effective["backend"] in ("cpu", "reference")
    assert reloaded.model["name"] == "tiny-deepseek" and reloaded.model["digest"]


def test_runs_a_plan_and_returns_a_sample_for_each(target: EmbeddedTarget) -> None:
    target.configure(configuration())
    seen: list[tuple[int, int]] = []
    result = target.run(plan(12), lambda one: seen.append((one.finished, one.planned)))
    assert [sample.request_id for sample in result.samples] == [f"r{i}" for i in range(12)]
    for sample in result.samples:
        assert sample.status is Status.OK and sample.output_tokens == 8
        assert sample.sent_ns is not None and sample.first_token_ns is not None
        assert result.started_ns <= sample.intended_ns <= sample.sent_ns < sample.first_token_ns
        assert sample.precision == "fp32" and sample.backend
    assert result.steps and seen and seen[0][1] == 12
    assert result.samples[-1].cached_tokens == 16, "all but the first share a whole block"
    target.reset_caches()
    assert target.run(plan(1)).samples[0].cached_tokens == 0


def test_tokenize(target: EmbeddedTarget) -> None:
    assert target.tokenize("é<|eos|>") == list("é<|eos|>".encode())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"max_model_len": 100_000}, "beyond what tiny-deepseek was trained for"),
        ({"kv_cache_memory_bytes": 1000}, "set kv_cache_memory_bytes to"),
        ({"kv_cache_memory_bytes": 1 << 49}, "is more than cpu has"),
        ({"precision": "fp16"}, "needs a GPU"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 128, "max_model_len": None},
         "enable_chunked_prefill"),
    ],
)  # fmt: skip
def test_an_impossible_configuration_is_refused_and_the_target_stays_usable(
    target: EmbeddedTarget, changed: dict[str, object], message: str
) -> None:
    target.configure(configuration())
    with pytest.raises(KnobError, match=message) as refused:
        target.configure(configuration(**changed))
    assert "\n" not in str(refused.value)
    assert target.run(plan(2)).samples[1].status is Status.OK


def test_a_missing_model_is_one_line_and_leaves_no_process() -> None:
    before = psutil.Process().children()
    with pytest.raises(ModelError) as refused:
        EmbeddedTarget("no-such-model")
    assert "\n" not in str(refused.value)
    assert psutil.Process().children() == before


def test_a_killed_child_is_a_target_error(tmp_path: Path) -> None:
    with EmbeddedTarget("tiny-deepseek", weights="random", log_path=tmp_path / "log") as target:
        target.configure(configuration())
        os.kill(target._child.pid, signal.SIGKILL)
        with pytest.raises(TargetError, match="killed by signal 9"):
            target.run(plan(1))


def test_the_child_ends_with_its_parent(tmp_path: Path) -> None:
    """kill -9 of the parent, in the middle of a run, leaves no engine behind."""
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from dstune.profile.load import parse_profile
from dstune.target.embedded import EmbeddedTarget
from test_embedded import configuration, plan
target = EmbeddedTarget("tiny-deepseek", weights="random")
target.configure(configuration())
print(target._child.pid, flush=True)
target.run(plan(100, output_tokens=200))
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    time.sleep(0.3)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert psutil.wait_procs([child], timeout=10)[1] == []


def test_unknown_target_names_what_works(tmp_path: Path) -> None:
    text = "name: x\ntarget: vllm\nworkload: {prompt_tokens: 4, output_tokens: 4}"
    with pytest.raises(UsageError, match="start it and give its URL"):
        open_target(parse_profile("x", text), tmp_path / "log")
