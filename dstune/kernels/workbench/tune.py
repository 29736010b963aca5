"""Measures which tile the routed experts of a model run fastest with on the GPU at hand.

The result is a table that `experts.tiles` reads; nothing else about the kernels depends on it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from dstune.architecture import ModelShape, MoeShape
from dstune.errors import DstuneError, UsageError
from dstune.kernels.device import Gpu, gpu_of
from dstune.kernels.experts import reference
from dstune.kernels.experts.tiles import Tile, TileKey, TileTable, rule
from dstune.kernels.experts.triton import TritonExperts, pack_experts
from dstune.kernels.launch import next_power_of_2
from dstune.kernels.precision import FLOAT_PRECISIONS, PRECISIONS
from dstune.kernels.workbench.timing import CudaTimer, Timer

Report = Callable[[str, int, int], None]
"""Progress: what, how many are done, how many are planned."""

TOKEN_COUNTS = (1, 4, 16, 64, 256, 1024, 4096)
DIFFERENT = 4  # experts that differ; the others repeat them, so that the reference stays small
# Of the largest output. A half type rounds features and outputs, and features that fall on the
# other side of a rounding boundary are averaged over the width.
SHARE = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 4e-2}


@dataclass(frozen=True)
class _Step:
    """One number of tokens, and what the reference makes of them."""

    x: Tensor
    weights: Tensor
    ids: Tensor
    expected: Tensor


def tune(
    shape: ModelShape,
    precision: str,
    device: torch.device,
    report: Report,
    timer: Timer | None = None,
    token_counts: tuple[int, ...] = TOKEN_COUNTS,
) -> TileTable:
    """Return the fastest tile for each number of tokens; weights are random.

    A tile is timed only once its result is right; one that is wrong or that the GPU has no room
    for is reported and left out. Raises UsageError for a model without routed experts, and where
    there is no CUDA device to measure on (a timer that is handed in measures anywhere).
    """
    moe = shape.moe
    if moe is None:
        raise UsageError(f"{shape.name} has no routed experts, and only their tiles are tuned")
    if precision not in PRECISIONS:
        raise UsageError(f"precision {precision!r}: the kernels know {', '.join(PRECISIONS)}")
    if timer is None:
        if device.type != "cuda" or not torch.cuda.is_available():
            raise UsageError(
                f"tiles are measured on a CUDA device, {device} is none: run this on the GPU that "
                "will serve the model"
            )
        timer = CudaTimer(device)
    gpu = gpu_of(device)
    dtype = FLOAT_PRECISIONS.get(precision, torch.bfloat16)
    ours, theirs = _pack(moe, shape.hidden_size, precision, dtype, device)
    operand_bytes = ours.operand_bytes(dtype)
    planned = {
        count: list(candidates(count * moe.top_k / moe.num_experts, precision, operand_bytes, gpu))
        for count in token_counts
    }
    done, total = 0, sum(map(len, planned.values()))
    best: dict[int, Tile] = {}
    for count, tiles in planned.items():
        step = _step(moe, torch.randn(count, shape.hidden_size, dtype=dtype, device=device), theirs)
        right = []
        for tile in tiles:
            problem = _problem(ours, step, tile)
            done += 1
            report(f"{count} tokens: {_shown(tile)}{problem}", done, total)
            if not problem:
                right.append(tile)
        if not right:
            raise DstuneError(f"no tile gives the right result for {count} tokens")
        best[count] = _fastest(ours, step, right, timer)
    key = TileKey(moe.num_experts, moe.intermediate_size, gpu.name, precision)
    return TileTable({key: best})


def candidates(
    pairs_per_expert: float, precision: str, operand_bytes: tuple[int, int], gpu: Gpu
) -> Iterator[Tile]:
    """Yield the rule's tile and those worth trying beside it that fit the shared memory."""
    x_bytes, weight_bytes = operand_bytes
    first = rule(pairs_per_expert, precision, operand_bytes, gpu)
    yield first
    largest = min(128, max(16, 2 * next_power_of_2(int(pairs_per_expert))))
    for block_m in (16, 32, 64, 128):
        if not largest // 4 <= block_m <= largest:
            continue
        if block_m < 64:  # bound by reading the weights
            columns, depths, stages = (32, 64, 128), (128 // weight_bytes, 256 // weight_bytes), 3
        else:
            columns, depths, stages = (64, 128, 256), (64 // x_bytes, 128 // x_bytes), 2
        for block_n, block_k, num_stages in product(columns, depths, range(3, 3 + stages)):
            # As many warps as keep a thread's sums within 64 registers, at most 8
            num_warps = 8 if block_m * block_n > 64 * 128 else 4
            tile = Tile(block_m, block_n, block_k, 8 if block_m >= 64 else 1, num_warps, num_stages)
            fits = tile.shared_memory_bytes(*operand_bytes) <= gpu.shared_memory_bytes
            # int8 and fp8 keep sums over 64 or 128 values beside the others
            most = 128 * (128 if precision in ("int8", "fp8") else 256)
            has_registers = block_m * block_n <= most
            if fits and has_registers and tile != first:
                yield tile


def _pack(
    moe: MoeShape, hidden: int, precision: str, dtype: torch.dtype, device: torch.device
) -> tuple[TritonExperts, reference.Experts]:
    """Return all experts, and the reference's for those that differ."""
    width = moe.intermediate_size

    def draw(*shape: int) -> list[Tensor]:
        scale = shape[-1] ** -0.5
        return [
            torch.randn(shape, dtype=dtype, device=device) * scale
            for _ in range(min(DIFFERENT, moe.num_experts))
        ]

    gate_up, down = draw(2 * width, hidden), draw(hidden, width)
    repeated = [
        [one[expert % DIFFERENT] for expert in range(moe.num_experts)] for one in (gate_up, down)
    ]
    return (
        pack_experts(repeated[0], repeated[1], precision, dtype),
        reference.pack_experts(gate_up, down, precision, dtype),
    )


def _step(moe: MoeShape, x: Tensor, theirs: reference.Experts) -> _Step:
    ids = torch.rand(len(x), moe.num_experts, device=x.device).topk(moe.top_k).indices
    weights = torch.rand(len(x), moe.top_k, device=x.device)
    return _Step(x, weights, ids, theirs(x, weights, ids % DIFFERENT).float())


def _problem(ours: TritonExperts, step: _Step, tile: Tile) -> str:
    """Return why a tile is not to be timed, empty if it is right."""
    try:
        found = ours.run(step.x, step.weights, step.ids, tile).float()
    except OutOfResources as error:
        return f": {error}"
    limit = SHARE[step.x.dtype] * float(step.expected.abs().max())
    worst = float((found - step.expected).abs().max())
    return "" if worst <= limit else f": wrong by {worst:.3g}, {limit:.3g} is allowed"


def _fastest(ours: TritonExperts, step: _Step, tiles: list[Tile], timer: Timer) -> Tile:
    def call(tile: Tile) -> Callable[[], Tensor]:
        return lambda: ours.run(step.x, step.weights, step.ids, tile)

    times = timer.time({str(number): call(tile) for number, tile in enumerate(tiles)})
    return min(enumerate(tiles), key=lambda one: times[str(one[0])].median_s)[1]


def _shown(tile: Tile) -> str:
    return (
        f"{tile.block_m}x{tile.block_n}x{tile.block_k}, {tile.num_warps} warps, "
        f"{tile.num_stages} stages, groups of {tile.group_m}"
    )
