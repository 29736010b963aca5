"""Split KV, shared by the decode kernels: how many splits, and how their results become one.

Decoding has few queries and long contexts, so a sequence's tokens are dealt to several programs;
each leaves a normalised partial output and the logarithm of its sum of weights, and a second
kernel adds them up by weight. Source: flash-decoding, Dao et al. 2023.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from dstune.kernels.device import Gpu
from dstune.kernels.launch import ceil_div, launch, next_power_of_2

MIN_TOKENS = 128  # of a split, where multiprocessors would idle otherwise
MIN_TOKENS_BUSY = 512  # of a split, where they would not: a partial output costs traffic
MAX_TOKENS = 16_384  # of a split: one long sequence among short ones must not finish alone
MAX_SPLITS = 128
EVEN_ENOUGH = 0.9  # share of the last wave's multiprocessors that work, over all waves


@dataclass(frozen=True)
class Splits:
    """How the tokens of every sequence are dealt out; the same for equal host lengths."""

    count: int
    min_tokens: int  # that a split takes before the next one gets any


def plan_splits(
    host_kv_lens: tuple[int, ...], programs_per_split: int, gpu: Gpu, num_resident: int
) -> Splits:
    """Deal the tokens so that the programs fill the GPU in even waves, in as few splits as do.

    `programs_per_split` work on one split of one sequence, `num_resident` fit a multiprocessor.
    Host lengths only, upper bounds under a CUDA graph: the grid depends on nothing else.
    """
    slots = gpu.num_multiprocessors * num_resident
    programs = max(1, len(host_kv_lens) * programs_per_split)
    longest = max((*host_kv_lens, 1))
    fair = sum(host_kv_lens) * programs_per_split / slots  # tokens, were they dealt out evenly
    most = min(MAX_SPLITS, ceil_div(longest, MIN_TOKENS))
    least = max(int(longest / max(fair, MIN_TOKENS)), ceil_div(longest, MAX_TOKENS))
    least = max(1, min(least, most))
    best, best_use = least, 0.0
    for count in range(least, min(most, least + 8) + 1):
        waves = ceil_div(programs * count, slots)
        use = programs * count / (waves * slots)
        if use > best_use:
            best, best_use = count, use
        if use >= EVEN_ENOUGH:
            break
    return Splits(best, MIN_TOKENS if programs < slots else MIN_TOKENS_BUSY)


@dataclass(frozen=True)
class Workspace:
    """What the splits leave for the merge; both tensors are the output itself if there is one."""

    partial: Tensor  # fp32 [rows, heads, splits, D]
    lse: Tensor  # fp32 [rows, heads, splits], base 2, -inf for a split without tokens


def workspace(out: Tensor, num_rows: int, num_splits: int) -> Workspace:
    """Allocate for the first num_rows of out [T, H, D]; nothing is needed for one split."""
    if num_splits == 1:
        return Workspace(out, out)
    _, num_heads, dim = out.shape
    shape = (num_rows, num_heads, num_splits)
    partial = torch.empty((*shape, dim), dtype=torch.float32, device=out.device)
    return Workspace(partial, torch.empty(shape, dtype=torch.float32, device=out.device))


def merge_splits(kept: Workspace, out: Tensor, num_splits: int) -> None:
    """Write the rows of out that the workspace holds; a row without any token becomes zero."""
    if num_splits == 1:
        return
    num_rows, num_heads, _, dim = kept.partial.shape
    block_d = min(128, next_power_of_2(dim))
    grid = (ceil_div(dim, block_d), num_heads, num_rows)
    launch(
        merge_kernel, grid, out, kept.partial, kept.lse, num_splits, dim, out.stride(0),
        out.stride(1), num_warps=4, num_stages=1, BLOCK_S=16, BLOCK_D=block_d,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_splits"])
def merge_kernel(
    out_ptr,
    partial_ptr,
    lse_ptr,
    num_splits,
    dim,
    stride_out_row,
    stride_out_head,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """One row, one head, BLOCK_D of its dimensions: partials weighted by 2 ** (lse - largest)."""
    head = tl.program_id(1)
    row = tl.program_id(2).to(tl.int64)
    dims = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    has_dim = dims < dim
    first = (row * tl.num_programs(1) + head) * num_splits
    largest = -float("inf")
    total = 0.0
    acc = tl.zeros([BLOCK_D], tl.float32)
    for start in range(0, num_splits, BLOCK_S):
        split = start + tl.arange(0, BLOCK_S)
        lse = tl.load(lse_ptr + first + split, mask=split < num_splits, other=-float("inf"))
        # An empty split left no partial output: it is masked, not multiplied by zero.
        filled = lse > -float("inf")
        partial = tl.load(
            partial_ptr + (first + split)[:, None] * dim + dims[None, :],
            mask=filled[:, None] & has_dim[None, :],
            other=0.0,
        )
        new_largest = tl.maximum(largest, tl.max(lse, 0))
        base = tl.where(new_largest > -float("inf"), new_largest, 0.0)  # -inf - -inf is NaN
        weight = tl.exp2(lse - base)
        shrink = tl.exp2(largest - base)
        total = total * shrink + tl.sum(weight, 0)
        acc = acc * shrink + tl.sum(weight[:, None] * partial, 0)
        largest = new_largest
    result = acc / tl.where(total > 0.0, total, 1.0)
    target = out_ptr + row * stride_out_row + head * stride_out_head + dims
    tl.store(target, result.to(out_ptr.dtype.element_ty), mask=has_dim)
