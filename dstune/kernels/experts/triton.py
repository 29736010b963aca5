"""Routed experts on a GPU: sort, one grouped product with SwiGLU, another, a weighted sum.

The numbers of launches and programs depend on the number of tokens alone, and no value is read on
the host: a decode step can be captured in a CUDA graph.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dstune.kernels.device import gpu_of
from dstune.kernels.experts.reference import check_shapes
from dstune.kernels.experts.tiles import Tile, TileKey, measured, rule
from dstune.kernels.experts.triton_grouped import combine_kernel, grouped_kernel
from dstune.kernels.experts.triton_sort import RowTiles, sort_pairs
from dstune.kernels.launch import ceil_div, launch
from dstune.kernels.linear.reference import GROUP
from dstune.kernels.linear.triton import QuantisedWeight, check_precision, quantise_for
from dstune.kernels.native.arguments import rows
from dstune.kernels.precision import FLOAT_PRECISIONS

_COMBINE_BLOCK = 1024


class _FloatStack:
    """One projection of all experts, [E, N, K] in a float dtype."""

    def __init__(self, weights: Sequence[Tensor], precision: str) -> None:
        self.padded_depth = weights[0].shape[1]
        dtype = FLOAT_PRECISIONS[precision]
        self.data = weights[0].new_empty(len(weights), *weights[0].shape, dtype=dtype)
        for index, weight in enumerate(weights):
            self.data[index].copy_(weight.detach())
        self.scale = self.data  # stands for an argument that is not read
        self.num_bytes = self.data.nbytes


class TritonExperts:
    """Routed SwiGLU experts; the same tokens give the same bits, whatever the experts' order."""

    def __init__(self, gate_up: Sequence[Tensor], down: Sequence[Tensor], precision: str) -> None:
        self.num_experts = len(gate_up)
        self.precision = precision
        self._hidden, self._width = down[0].shape
        self.features = self._width
        stack = _FloatStack if precision in FLOAT_PRECISIONS else QuantisedWeight
        self._gate_up, self._down = stack(gate_up, precision), stack(down, precision)
        self.num_bytes = self._gate_up.num_bytes + self._down.num_bytes
        self._chosen: dict[tuple[int, int, torch.dtype], Tile] = {}

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """Map x [T, D], weights fp32 [T, k], ids int64 [T, k] -> [T, D]; combined in fp32."""
        asked = (len(x), ids.shape[1], x.dtype)
        if asked not in self._chosen:  # a step of many layers has no time to look tables up
            self._chosen[asked], _ = self.choose(x, ids.shape[1])
        return self.run(x, weights, ids, self._chosen[asked])

    def choose(self, x: Tensor, top_k: int) -> tuple[Tile, str]:
        """Return the tile for x and where it comes from: user (his table), shipped, or rule."""
        gpu = gpu_of(x.device)
        key = TileKey(self.num_experts, self._width, gpu.name, self.precision)
        found = measured(key, len(x))
        if found is not None:
            return found
        pairs_per_expert = len(x) * top_k / self.num_experts
        return rule(pairs_per_expert, self.precision, self.operand_bytes(x.dtype), gpu), "rule"

    def operand_bytes(self, activations: torch.dtype) -> tuple[int, int]:
        """Return the bytes per value of activations and weights, as the products take them."""
        weight_bytes = self._down.data.element_size()
        if self.precision == "int8_weight_only":
            return activations.itemsize, weight_bytes
        return weight_bytes, weight_bytes

    def run(self, x: Tensor, weights: Tensor, ids: Tensor, tile: Tile) -> Tensor:
        """Do as `__call__` with a given tile."""
        x, ids, weights = rows(x), ids.contiguous(), weights.float().contiguous()
        num_tokens, top_k = ids.shape
        out = x.new_empty(num_tokens, self._hidden)
        if not num_tokens:
            return out
        dtype = FLOAT_PRECISIONS.get(self.precision, x.dtype)
        if num_tokens > 1:
            tiles = sort_pairs(ids, self.num_experts, tile.block_m)
        else:  # its pairs go to as many experts: each is a tile, and nothing is sorted
            tiles = RowTiles(ids, ids, ids, top_k)
        features = x.new_empty(num_tokens * top_k, self._width, dtype=dtype)
        self._multiply(x.to(dtype), self._gate_up, features, (ids, tiles, tile, top_k))
        y = x.new_empty(num_tokens * top_k, self._hidden, dtype=dtype)
        self._multiply(features, self._down, y, (ids, tiles, tile, 1))
        launch(
            combine_kernel, (num_tokens, ceil_div(self._hidden, _COMBINE_BLOCK)),
            y, weights, out, self._hidden, TOP_K=top_k, BLOCK=_COMBINE_BLOCK,
            num_warps=4, num_stages=1,
        )  # fmt: skip
        return out

    def _multiply(
        self,
        x: Tensor,
        weight: _FloatStack | QuantisedWeight,
        out: Tensor,
        plan: tuple[Tensor, RowTiles, Tile, int],  # ids, tiles, tile, pairs per row of x
    ) -> None:
        ids, tiles, tile, pairs_per_row = plan
        is_gated = weight is self._gate_up
        block_n = tile.block_n // 2 if is_gated else tile.block_n
        width = out.shape[1]
        operand, scale = quantise_for(x, self.precision, weight.padded_depth)
        block_k, unroll = tile.block_k, 1
        if self.precision == "int8":  # a group has a scale of its own
            block_k, unroll = GROUP, min(tile.block_k, weight.padded_depth) // GROUP
        launch(
            grouped_kernel, (tiles.num_tiles * ceil_div(width, block_n),),
            operand, scale, weight.data, weight.scale, out,
            ids, tiles.pairs, tiles.expert, tiles.num_rows, tiles.num_tiles, len(x), width,
            operand.shape[1], operand.stride(0), weight.padded_depth,
            PRECISION="float" if isinstance(weight, _FloatStack) else self.precision,
            GATED=is_gated, SORTED=tiles.pairs is not ids, PAIRS_PER_ROW=pairs_per_row,
            BLOCK_M=tile.block_m, BLOCK_N=block_n, BLOCK_K=block_k, UNROLL=unroll,
            GROUP_M=tile.group_m, num_warps=tile.num_warps, num_stages=tile.num_stages,
        )  # fmt: skip


def pack_experts(
    gate_up: Sequence[Tensor], down: Sequence[Tensor], precision: str, activation_dtype: torch.dtype
) -> TritonExperts:
    """Pack per-expert weights: gate_up [2F, D] = [gate | up] and down [D, F] of each.

    Raises UsageError for fp8 on a device without e4m3 tensor cores.
    """
    check_shapes(gate_up, down)
    check_precision(precision, down[0].device)
    return TritonExperts(gate_up, down, precision)
