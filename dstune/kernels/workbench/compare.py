"""How far the tensors of a kernel are from those of its reference."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Difference:
    """The element that is worst beside its limit, or why two results cannot be compared."""

    error: float  # absolute, of that element
    limit: float  # atol + rtol * |expected| there
    problem: str = ""

    @property
    def passes(self) -> bool:
        """Whether everything is within its limit."""
        return not self.problem and self.error <= self.limit


def compare(
    found: Sequence[Tensor], expected: Sequence[Tensor], atol: float, rtol: float
) -> Difference:
    """Compare results pairwise; types, shapes, NaN and infinities must agree exactly.

    NaN where the reference has a number is an output that was never written, a number where it
    has NaN is a write that should not have been.
    """
    if len(found) != len(expected):
        return _problem(f"{len(found)} results, expected {len(expected)}")
    if not expected:
        return _problem("the case returns nothing to compare")
    worst = Difference(0.0, atol)
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        one = _compare_one(f"result {number}", ours, theirs, atol, rtol)
        if one.problem:
            return one
        if _excess(one) > _excess(worst):
            worst = one
    return worst


def _problem(text: str) -> Difference:
    return Difference(float("nan"), 0.0, text)


def _excess(one: Difference) -> float:
    return one.error / one.limit if one.limit else (float("inf") if one.error else 0.0)


def _compare_one(name: str, ours: Tensor, theirs: Tensor, atol: float, rtol: float) -> Difference:
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return _problem(
            f"{name} is {ours.dtype} {list(ours.shape)}, "
            f"expected {theirs.dtype} {list(theirs.shape)}"
        )
    if not ours.numel():
        return Difference(0.0, atol)
    a, b = ours.detach().double(), theirs.detach().double()
    unwritten, stray = int((a.isnan() & ~b.isnan()).sum()), int((b.isnan() & ~a.isnan()).sum())
    if unwritten:
        return _problem(f"{name}: {unwritten} of {a.numel()} elements are NaN")
    if stray:
        return _problem(f"{name}: {stray} elements are written that must stay as they were")
    infinite = a.isinf() | b.isinf()
    if not torch.equal(a[infinite], b[infinite]):
        return _problem(f"{name}: infinities differ")
    skip = infinite | b.isnan()
    limit = (b.abs() * rtol + atol).masked_fill(skip, float("inf")).flatten()
    error = (a - b).abs().masked_fill(skip, 0.0).flatten()
    # beside a limit of 0 (exact results) any error is infinitely far out
    share = torch.where(error == 0, 0.0, error / limit)
    at = int(share.argmax())
    return Difference(float(error[at]), float(limit[at]) if not bool(skip.all()) else atol)
