"""A step's plan as tensors: the flat batch that a model computes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dstune.engine.scheduler import StepPlan
from dstune.kernels.batch import AttentionBatch


@dataclass(frozen=True)
class ModelInput:
    """Everything that a forward pass reads beside weights and cache."""

    token_ids: Tensor  # int64 [num_tokens]
    attention: AttentionBatch
    logits_rows: Tensor  # int64 [num_yielding], rows of the flat batch whose logits are wanted


def build_input(plan: StepPlan, block_size: int, device: torch.device) -> ModelInput:
    """Lays the shares of a step one after the other, in the plan's order."""
    shares = plan.scheduled
    num_seqs = len(shares)
    query_lens = [one.num_tokens for one in shares]
    kv_lens = [one.start + one.num_tokens for one in shares]
    query_start = np.zeros(num_seqs + 1, np.int32)
    np.cumsum(query_lens, out=query_start[1:])
    num_tokens = int(query_start[-1])
    token_ids = np.empty(num_tokens, np.int64)
    positions = np.empty(num_tokens, np.int64)
    slots = np.empty(num_tokens, np.int64)
    width = max(len(one.request.block_table) for one in shares)
    tables = np.full((num_seqs, width), -1, np.int32)
    for row, one in enumerate(shares):
        request, first, last = one.request, query_start[row], query_start[row + 1]
        stop = one.start + one.num_tokens
        token_ids[first:last] = request.token_ids[one.start : stop]
        tables[row, : len(request.block_table)] = request.block_table
        if one.num_tokens == 1:
            block, offset = divmod(one.start, block_size)
            positions[first] = one.start
            slots[first] = request.block_table[block] * block_size + offset
        else:
            where = np.arange(one.start, stop)
            positions[first:last] = where
            blocks = tables[row, where // block_size].astype(np.int64)
            slots[first:last] = blocks * block_size + where % block_size
    rows = [int(query_start[row + 1]) - 1 for row, one in enumerate(shares) if one.yields_token]

    def on_device(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    attention = AttentionBatch(
        positions=on_device(positions),
        slot_mapping=on_device(slots),
        query_start=on_device(query_start),
        kv_lens=on_device(np.asarray(kv_lens, np.int32)),
        block_tables=on_device(tables),
        block_size=block_size,
        host_query_lens=tuple(query_lens),
        host_kv_lens=tuple(kv_lens),
    )
    return ModelInput(on_device(token_ids), attention, on_device(np.asarray(rows, np.int64)))
