"""The embedded target over HTTP in the middle of a load: kills and a Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from dstune import knobs
from dstune.errors import TargetError
from dstune.load.plan import LoadPlan, PlannedRequest
from dstune.measure.progress import LoadProgress
from dstune.measure.sample import Status
from dstune.target.embedded import EmbeddedTarget
from dstune.target.target import Interrupted

NUM = 20_000  # at 50/s: far longer than any test waits
PATIENCE_S = 60.0


@pytest.fixture
def target(tmp_path: Path, others: None) -> Iterator[EmbeddedTarget]:
    with EmbeddedTarget("tiny-deepseek", weights="random", log_path=tmp_path / "target.log",
                        num_processes=2) as one:  # fmt: skip
        one.configure(knobs.complete({"max_model_len": 256, "kv_cache_memory_bytes": 16 << 20}))
        yield one


def long_plan() -> LoadPlan:
    return LoadPlan(tuple(
        PlannedRequest(f"r{at}", at * 20_000_000, tuple(range(20)), 8, seed=at)
        for at in range(NUM)
    ))  # fmt: skip


def once_some_are_ok(act: Callable[[], object]) -> Callable[[LoadProgress], None]:
    done: list[bool] = []

    def watch(seen: LoadProgress) -> None:
        if seen.ok > 5 and not done:
            done.append(True)
            act()

    return watch


OTHERS: list[int] = []


@pytest.fixture(autouse=True)
def others() -> None:
    """Processes that other tests have started and that are none of this target's."""
    OTHERS[:] = [one.pid for one in psutil.Process().children(recursive=True)]


def everybody_here() -> list[psutil.Process]:
    """The processes of this target."""
    children = psutil.Process().children(recursive=True)
    return [one for one in children if one.pid not in OTHERS]


def own(mark: str) -> psutil.Process:
    """The one with a word in its command line."""
    return next(one for one in everybody_here() if mark in one.cmdline())


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("--http", "the engine's process was killed by signal 9"),
        ("--child", "the engine's process was killed by signal 9"),
        ("locust", "a load process was killed by signal 9"),
    ],
)
def test_whoever_dies_ends_the_load_at_once_in_one_line(
    target: EmbeddedTarget, mark: str, said: str
) -> None:
    everybody: list[psutil.Process] = []

    def strike() -> None:
        everybody.extend(everybody_here())
        own(mark).kill()

    with pytest.raises(TargetError) as caught:
        target.run(long_plan(), once_some_are_ok(strike))
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)
    target.stop()
    assert len(everybody) >= 4
    assert psutil.wait_procs(everybody, timeout=PATIENCE_S)[1] == []


def test_a_ctrl_c_keeps_every_sample_and_step(target: EmbeddedTarget) -> None:
    interrupt = once_some_are_ok(lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(Interrupted) as caught:
        target.run(long_plan(), interrupt)
    result = caught.value.result
    assert [one.request_id for one in result.samples] == [f"r{at}" for at in range(NUM)]
    ended = {one.status for one in result.samples}
    assert {Status.OK, Status.UNSENT} <= ended <= {Status.OK, Status.INCOMPLETE, Status.UNSENT}
    assert all(one.precision and one.backend for one in result.samples)
    tokens = sum(one.output_tokens for one in result.samples)
    assert sum(one.num_decode_tokens + one.num_prefill_tokens for one in result.steps) >= tokens
    assert {one.process for one in result.samples} == {0, 1}
    # the target is as usable as before
    few = LoadPlan(long_plan().requests[:4])
    assert {one.status for one in target.run(few).samples} == {Status.OK}
