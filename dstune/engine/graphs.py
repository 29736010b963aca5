"""Decode steps of fixed sizes, captured once as CUDA graphs and replayed.

A decode step of a small model is hundreds of kernels of a few microseconds: launched one by one
they would wait for Python. A graph fixes addresses and grids, so every size has its own, over the
same input buffers; a step of n sequences runs in the next larger one, and the rows to spare are
padding that reads nothing (kv_len 0) and writes nothing (slot -1).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dstune.engine.batch import ModelInput
from dstune.kernels.batch import AttentionBatch
from dstune.model.model import Model

Forward = Callable[[], Tensor]
Capture = Callable[[Forward], Forward]
"""Runs a computation once and returns what repeats it, over the same buffers."""


def graph_sizes(max_num_seqs: int) -> list[int]:
    """1, 2, 4, 8, 12, 16, 24, 32, 48, ... and max_num_seqs: under half of a step is padding."""
    sizes = [1, 2, 4]
    step = 4
    while sizes[-1] < max_num_seqs:
        sizes.append(sizes[-1] + step)
        if sizes[-1] == 4 * step:
            step *= 2
    return [size for size in sizes if size < max_num_seqs] + [max_num_seqs]


def cuda_capture(device: torch.device) -> Capture:
    """Capture into CUDA graphs that share one memory pool: only one runs at a time."""
    pool = torch.cuda.graph_pool_handle()

    def capture(forward: Forward) -> Forward:
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            forward()  # compiles kernels and lets libraries allocate, which a capture forbids
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            out = forward()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay

    return capture


class DecodeGraphs:
    """The graphs of one model over one cache."""

    def __init__(
        self, model: Model[Any], cache: list[Any], max_model_len: int, block_size: int,
        capture: Capture,
    ) -> None:  # fmt: skip
        self._model = model
        self._cache = cache
        self._max_model_len = max_model_len
        self._block_size = block_size
        self._capture = capture
        self._forwards: dict[int, Forward] = {}
        self._inputs: ModelInput | None = None

    def prepare(self, max_num_seqs: int) -> None:
        """Capture every size up to max_num_seqs, the largest first: the others fit its memory."""
        if self._inputs is not None and len(self._inputs.token_ids) >= max_num_seqs:
            return
        self._forwards = {}
        self._inputs = self._allocate(max_num_seqs)
        for size in reversed(graph_sizes(max_num_seqs)):
            inputs = _first(self._inputs, size)
            self._forwards[size] = self._capture(partial(self._forward, inputs))

    def _forward(self, inputs: ModelInput) -> Tensor:
        return self._model.forward(
            inputs.token_ids, inputs.attention, self._cache, inputs.logits_rows
        )

    def _allocate(self, size: int) -> ModelInput:
        device = self._model.precision.device
        width = -(-self._max_model_len // self._block_size)

        def filled(*shape: int, value: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.full(shape, value, dtype=dtype, device=device)

        attention = AttentionBatch(
            positions=filled(size, value=0),
            slot_mapping=filled(size, value=-1),
            query_start=torch.arange(size + 1, dtype=torch.int32, device=device),
            kv_lens=filled(size, value=0, dtype=torch.int32),
            block_tables=filled(size, width, value=0, dtype=torch.int32),
            block_size=self._block_size,
            host_query_lens=(1,) * size,
            host_kv_lens=(self._max_model_len,) * size,  # grids must serve the longest
        )
        return ModelInput(filled(size, value=0), attention, torch.arange(size, device=device))

    def run(self, step: ModelInput) -> Tensor:
        """Compute a decode step of n sequences: logits fp32 [n, vocab_size].

        They stand in the graphs' memory until the next run.
        """
        assert self._inputs is not None
        num_seqs = len(step.token_ids)
        size = min(size for size in self._forwards if size >= num_seqs)
        ours, theirs = _first(self._inputs, size), step.attention
        ours.token_ids[:num_seqs].copy_(step.token_ids, non_blocking=True)
        for buffer, values, padding in (
            (ours.attention.positions, theirs.positions, 0),
            (ours.attention.slot_mapping, theirs.slot_mapping, -1),
            (ours.attention.kv_lens, theirs.kv_lens, 0),
        ):
            buffer[:num_seqs].copy_(values, non_blocking=True)
            buffer[num_seqs:].fill_(padding)
        width = theirs.block_tables.shape[1]
        ours.attention.block_tables[:num_seqs, :width].copy_(theirs.block_tables, non_blocking=True)
        return self._forwards[size]()[:num_seqs]


def _first(inputs: ModelInput, size: int) -> ModelInput:
    """The buffers' first rows: the same memory."""
    return ModelInput(
        inputs.token_ids[:size], inputs.attention.first(size), inputs.logits_rows[:size]
    )
