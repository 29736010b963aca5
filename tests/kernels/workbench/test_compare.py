"""Comparison with a reference: what passes, and everything that must not."""

import math

import pytest
import torch

from dstune.kernels.workbench.compare import compare

NAN, INF = math.nan, math.inf


def test_the_worst_element_is_judged_by_its_own_limit() -> None:
    expected = torch.tensor([100.0, 1.0])
    found = compare([torch.tensor([100.5, 1.2])], [expected], atol=0.1, rtol=0.01)
    assert not found.passes  # 0.5 is within 1.1, 0.2 is not within 0.11
    assert found.error == pytest.approx(0.2, rel=1e-5)
    assert found.limit == pytest.approx(0.11)
    assert compare([torch.tensor([101.0, 1.1])], [expected], atol=0.11, rtol=0.01).passes


def test_a_limit_of_zero_wants_equal_results() -> None:
    same = torch.arange(5)
    assert compare([same], [same.clone()], 0.0, 0.0).passes
    other = same.clone()
    other[3] += 1
    found = compare([other], [same], 0.0, 0.0)
    assert not found.passes and found.error == 1.0


@pytest.mark.parametrize(
    ("found", "expected", "reason"),
    [
        ([NAN, 1.0], [0.0, 1.0], "1 of 2 elements are NaN"),
        ([0.0, 1.0], [NAN, 1.0], "written that must stay"),
        ([INF, 1.0], [1.0, 1.0], "infinities differ"),
        ([INF, 1.0], [-INF, 1.0], "infinities differ"),
        ([1.0], [1.0, 1.0], "expected torch.float32 [2]"),
    ],
)
def test_what_a_tolerance_cannot_excuse(
    found: list[float], expected: list[float], reason: str
) -> None:
    result = compare([torch.tensor(found)], [torch.tensor(expected)], 1e9, 1e9)
    assert not result.passes
    assert reason in result.problem


def test_nan_and_infinity_in_the_same_places_pass() -> None:
    values = torch.tensor([NAN, INF, -INF, 1.0])
    assert compare([values], [values.clone()], 0.0, 0.0).passes
    assert compare([values[:1]], [values[:1].clone()], 0.0, 0.0).passes


def test_types_numbers_and_emptiness() -> None:
    one = torch.ones(2)
    assert "torch.float16" in compare([one.half()], [one], 1.0, 1.0).problem
    assert "0 results" in compare([], [one], 1.0, 1.0).problem
    assert "nothing to compare" in compare([], [], 1.0, 1.0).problem
    assert compare([one[:0]], [one[:0]], 0.0, 0.0).passes
