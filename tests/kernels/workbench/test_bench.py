"""Timing: never without proof; what the figures are, worked by hand; a fake clock."""

from collections.abc import Mapping
from typing import ClassVar

import pytest
import torch
from kernel_cases import CPU, REFERENCE, backend, forgetful, norm_case, wrong

from dstune.errors import UsageError
from dstune.kernels.select import Kernels
from dstune.kernels.workbench.bench import Benchmark, bench
from dstune.kernels.workbench.case import Case, Cost
from dstune.kernels.workbench.predict import predict
from dstune.kernels.workbench.timing import Call, CpuTimer, Times, summary


class FakeTimer:
    """Two milliseconds for ours, three for torch's; a copy takes 0.1 s and a matmul 0.01 s."""

    SECONDS: ClassVar = {"ours": 0.002, "torch": 0.003, "copy": 0.1, "matmul": 0.01}

    def __init__(self) -> None:
        self.timed: list[str] = []

    def time(self, calls: Mapping[str, Call]) -> dict[str, Times]:
        self.timed += calls
        for call in calls.values():
            call()
        seconds = self.SECONDS
        return {name: Times(seconds[name], seconds[name], seconds[name], 1, "clock")
                for name in calls}  # fmt: skip


def run(kernels: Kernels, *cases: Case) -> tuple[Benchmark, FakeTimer]:
    timer = FakeTimer()
    return bench(cases, kernels, REFERENCE, CPU, timer, lambda *_: None), timer


def test_figures_by_hand() -> None:
    case = norm_case(cost=Cost(num_bytes=4_000_000, num_flops=8_000_000),
                     torch_call=lambda inputs: inputs["x"] * 2)  # fmt: skip
    found, timer = run(backend(REFERENCE.rms_norm, "cpu"), case)
    (row,) = found.timings
    assert found.passes
    assert timer.timed == ["copy", "matmul", "ours", "torch"]
    assert row.bytes_per_s == 2e9  # 4 MB in 2 ms
    assert row.flops_per_s == 4e9
    assert row.copy_share == pytest.approx(2e9 / (2 * (256 << 20) / 0.1))
    assert row.matmul_share == pytest.approx(4e9 / (2 * 1024**3 / 0.01))
    assert row.speedup == 1.5


@pytest.mark.parametrize(("broken", "reason"), [(wrong, "wrong: error 0.01"), (forgetful, "NaN")])
def test_what_does_not_verify_is_not_timed(broken: object, reason: str) -> None:
    found, timer = run(backend(broken), norm_case())  # type: ignore[arg-type]
    assert not found.passes
    assert "ours" not in timer.timed
    assert found.timings[0].ours is None
    assert reason in found.failed[0].failure


def test_torch_operation_that_raises_is_told() -> None:
    def refuses(_: object) -> None:
        raise RuntimeError("not for this dtype")

    found, _ = run(backend(REFERENCE.rms_norm), norm_case(torch_call=refuses))
    assert found.timings[0].failure == "not timed: RuntimeError: not for this dtype"
    assert not found.passes


def test_cases_too_large_for_a_cpu_are_counted() -> None:
    large = [norm_case("a", cost=Cost(1 << 30, 1)), norm_case("b", cost=Cost(1, 10**12))]
    found, _ = run(backend(REFERENCE.rms_norm), *large, norm_case("c"))
    assert [one.case for one in found.timings] == ["c"]
    assert found.skipped == {"too large for a CPU, more than 256 MiB or 20 GFLOP": 2}


def test_nothing_timed_is_no_pass() -> None:
    found, timer = run(backend(REFERENCE.rms_norm), norm_case(dtype=torch.bfloat16))
    assert not found.passes and timer.timed == []


def test_the_cpu_timer_takes_turns_on_its_clock() -> None:
    now = 0.0
    order = []

    def call(name: str, seconds: float) -> Call:
        def run() -> None:
            nonlocal now
            now += seconds
            order.append(name)

        return run

    timer = CpuTimer(budget_s=1.0, max_runs=50, clock=lambda: now)
    times = timer.time({"a": call("a", 0.1), "b": call("b", 0.2)})
    assert order[:6] == ["a", "b", "a", "b", "a", "b"]
    assert times["a"].median_s == pytest.approx(0.1)
    assert times["b"].median_s == pytest.approx(0.2)
    assert times["a"].num_runs == times["b"].num_runs == 7  # beyond 2 s, the first was warm-up


def test_summary() -> None:
    times = summary([float(n) for n in range(11, 0, -1)], "events")
    assert (times.median_s, times.low_s, times.high_s, times.num_runs) == (6.0, 2.0, 10.0, 11)


def test_predictions_by_hand() -> None:
    moves = norm_case("moves", torch.bfloat16, cost=Cost(2_039_000_000, 312))
    computes = norm_case("computes", torch.bfloat16, cost=Cost(2039, 312 * 10**9))
    found = predict([moves, computes], "a100-80g")
    assert [(one.bound, round(one.least_s, 9)) for one in found.rows] == [
        ("memory", 0.001),
        ("compute", 0.001),
    ]


def test_predictions_say_what_they_leave_out() -> None:
    cases = [norm_case("a", cost=None), norm_case("b", needs_fp8=True), norm_case("c")]
    found = predict(cases, "A100-80G")
    assert [one.case for one in found.rows] == ["c"]
    assert found.skipped == {"their cost is not stated": 1, "A100-80G has no fp8": 1}
    assert len(predict(cases, "H200").rows) == 2
    assert predict(cases, "h100").gpu.name == "H100-SXM"
    with pytest.raises(UsageError, match="choose from A100-80G"):
        predict(cases, "T4")
    with pytest.raises(UsageError, match="choose from A100-80G"):
        predict(cases, "h")
