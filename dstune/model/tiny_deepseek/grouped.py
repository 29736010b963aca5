"""Differentiable row grouping and per-expert linear maps.

Rows of tokens are sorted by expert once, so that each expert is one dense product; the backward
passes are written out because autograd's own would scatter rows one at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Regroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, copies: int) -> Tensor:
        ctx.save_for_backward(order.argsort())
        ctx.copies = copies
        return x.index_select(0, order.div(copies, rounding_mode="floor"))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        rows = grad.index_select(0, inverse)
        return rows.view(-1, ctx.copies, grad.shape[1]).sum(1), None, None


class _Ungroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, weights: Tensor) -> Tensor:
        copies = rows.index_select(0, order.argsort()).view(*weights.shape, rows.shape[1])
        scale = weights.to(rows.dtype)
        ctx.save_for_backward(copies, order, scale)
        return torch.bmm(scale[:, None], copies).squeeze(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor]:
        copies, order, scale = ctx.saved_tensors
        to_rows = (grad[:, None] * scale[..., None]).flatten(0, 1).index_select(0, order)
        to_weights = torch.bmm(copies, grad[..., None]).squeeze(-1).float()
        return to_rows, None, to_weights


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, counts: list[int]) -> Tensor:
        cast = weight.to(rows.dtype)
        ctx.save_for_backward(rows, cast)
        ctx.counts = counts
        out = rows.new_empty(rows.shape[0], weight.shape[1])
        for w, x, y in zip(
            cast, rows.split_with_sizes(counts), out.split_with_sizes(counts), strict=True
        ):
            torch.mm(x, w.t(), out=y)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, cast = ctx.saved_tensors
        to_rows, to_weight = torch.empty_like(rows), torch.empty_like(cast)
        chunks = zip(
            cast,
            to_weight,
            rows.split_with_sizes(ctx.counts),
            to_rows.split_with_sizes(ctx.counts),
            grad.contiguous().split_with_sizes(ctx.counts),
            strict=True,
        )
        for w, dw, x, dx, dy in chunks:
            torch.mm(dy, w, out=dx)
            torch.mm(dy.t(), x, out=dw)
        return to_rows, to_weight.float(), None


def regroup(x: Tensor, order: Tensor, copies: int) -> Tensor:
    """Copy tokens [T, D] `copies` times and sort the copies: [T * copies, D] by `order`."""
    return _Regroup.apply(x, order, copies)  # type: ignore[no-untyped-call, no-any-return]


def ungroup(rows: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum [T, D] of each token's rows; undoes `regroup` for weights [T, copies]."""
    return _Ungroup.apply(rows, order, weights)  # type: ignore[no-untyped-call, no-any-return]


def grouped_linear(rows: Tensor, weight: Tensor, counts: list[int]) -> Tensor:
    """Apply weight e of [E, out, in] to the e-th group of rows; `counts` are group sizes."""
    return _GroupedLinear.apply(rows, weight, counts)  # type: ignore[no-untyped-call, no-any-return]
