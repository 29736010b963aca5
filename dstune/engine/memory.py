"""How large the KV cache is: what the device has, less weights, activations and graphs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import psutil
import torch
from torch import Tensor

from dstune.architecture import ModelShape
from dstune.engine.config import EngineConfig
from dstune.engine.graphs import graph_sizes
from dstune.errors import KnobError
from dstune.kernels.batch import AttentionBatch
from dstune.kernels.precision import KV_DTYPES
from dstune.kernels.select import Kernels
from dstune.model.model import Model
from dstune.model.precision import resolve_kv_dtype

CPU_KV_CACHE_BYTES = 1 << 30  # on a CPU the memory is everybody's: ask for more explicitly
DTYPE_NAMES = {dtype: name for name, dtype in KV_DTYPES.items()}


@dataclass(frozen=True)
class CacheSize:
    """The KV cache that a configuration makes on this device."""

    num_blocks: int
    block_size: int
    dtype: torch.dtype
    num_bytes: int
    max_model_len: int

    @property
    def num_tokens(self) -> int:
        """Tokens that fit."""
        return self.num_blocks * self.block_size


GRAPH_BYTES = 16 << 20  # of a captured graph beside the pool that all share; a guess upwards


def activation_bytes(shape: ModelShape, config: EngineConfig) -> int:
    """An upper bound of one step's temporary memory: the widest layer in fp32, and the logits."""
    widest = max(
        2 * shape.intermediate_size,
        shape.num_heads * shape.head_dim * 3,
        shape.hidden_size * 4,
    )
    return 4 * (config.max_num_batched_tokens * widest + config.max_num_seqs * shape.vocab_size)


def size_cache(config: EngineConfig, model: Model[Any], kernels: Kernels) -> CacheSize:
    """How many blocks fit, and the longest sequence they allow.

    KV memory = utilisation * total - weights - activations, unless it is given. Raises
    `KnobError` when one sequence of max_model_len does not fit.
    """
    shape, device = model.shape, model.precision.device
    dtype = resolve_kv_dtype(config.kv_cache_dtype, model.precision, kernels)
    num_bytes = config.kv_cache_memory_bytes
    total = _total_bytes(device)
    if num_bytes is not None and num_bytes > total:
        raise KnobError(
            f"kv_cache_memory_bytes ({num_bytes}) is more than {device} has ({total} bytes)"
        )
    if num_bytes is None:
        num_bytes = int(config.gpu_memory_utilization * total)
        if device.type == "cuda":
            num_bytes -= occupied_bytes(config, model, kernels)
        else:
            num_bytes -= model.num_weight_bytes + activation_bytes(shape, config)
            num_bytes = min(num_bytes, CPU_KV_CACHE_BYTES)
    per_token = shape.kv_bytes_per_token(
        DTYPE_NAMES[dtype], DTYPE_NAMES[model.precision.activations]
    )
    num_blocks = max(num_bytes, 0) // (per_token * config.block_size)
    tokens = num_blocks * config.block_size
    wanted = config.max_model_len
    if wanted is not None and wanted > shape.max_position:
        raise KnobError(
            f"max_model_len ({wanted}) is beyond what {shape.name} was trained for "
            f"({shape.max_position})"
        )
    longest = min(shape.max_position, tokens) if wanted is None else wanted
    if num_blocks == 0 or longest > tokens:
        blocks = -(-(wanted or 1) // config.block_size)
        needed = blocks * config.block_size * per_token
        raise KnobError(
            f"the KV cache holds {tokens} tokens, less than max_model_len ({wanted or 1}): set "
            f"kv_cache_memory_bytes to {needed} or more, or lower max_model_len"
        )
    check_chunking(config, longest)
    size = num_blocks * config.block_size * per_token
    return CacheSize(num_blocks, config.block_size, dtype, size, longest)


def check_chunking(config: EngineConfig, max_model_len: int) -> None:
    """Raise `KnobError` where a prompt of max_model_len would never fit a step."""
    if not config.enable_chunked_prefill and config.max_num_batched_tokens < max_model_len:
        raise KnobError(
            f"max_num_batched_tokens ({config.max_num_batched_tokens}) must be at least "
            f"max_model_len ({max_model_len}) when enable_chunked_prefill is false"
        )


def _total_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return int(psutil.virtual_memory().total)


def occupied_bytes(config: EngineConfig, model: Model[Any], kernels: Kernels) -> int:
    """What a CUDA device holds beside the KV cache: measured, with the largest step computed once.

    Whatever is on the device now counts (weights, the driver's context, other processes), then
    the peak of a step of max_num_batched_tokens, then the graphs' own memory: their shared pool
    is one decode step of max_num_seqs.
    """
    device = model.precision.device
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run_largest_step(config, model, kernels)
    peak = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    graphs = 0
    if not config.enforce_eager:
        decode = activation_bytes(
            model.shape, replace(config, max_num_batched_tokens=config.max_num_seqs)
        )
        graphs = decode + GRAPH_BYTES * len(graph_sizes(config.max_num_seqs))
    return total - free + peak + graphs


@torch.inference_mode()
def run_largest_step(config: EngineConfig, model: Model[Any], kernels: Kernels) -> None:
    """Compute a step of max_num_batched_tokens and sample max_num_seqs tokens, storing nothing.

    Every sequence's table names the same block, whose content does not matter.
    """
    device, block_size = model.precision.device, config.block_size
    longest = min(config.max_model_len or model.shape.max_position, model.shape.max_position)
    num_tokens = max(config.max_num_batched_tokens, config.max_num_seqs)
    num_seqs = -(-num_tokens // longest)
    lens = [longest] * (num_seqs - 1) + [num_tokens - longest * (num_seqs - 1)]
    num_blocks = -(-longest // block_size)
    starts = [0]
    for length in lens:
        starts.append(starts[-1] + length)

    def on_device(values: list[int], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    batch = AttentionBatch(
        positions=torch.cat([torch.arange(length, device=device) for length in lens]),
        slot_mapping=torch.full((num_tokens,), -1, dtype=torch.int64, device=device),
        query_start=on_device(starts, torch.int32),
        kv_lens=on_device(lens, torch.int32),
        block_tables=torch.zeros(num_seqs, num_blocks, dtype=torch.int32, device=device),
        block_size=block_size,
        host_query_lens=tuple(lens),
        host_kv_lens=tuple(lens),
    )
    dtype = resolve_kv_dtype(config.kv_cache_dtype, model.precision, kernels)
    cache = model.allocate_cache(1, block_size, dtype)
    ids = torch.zeros(num_tokens, dtype=torch.int64, device=device)
    rows = torch.arange(min(config.max_num_seqs, num_tokens), device=device)
    logits = model.forward(ids, batch, cache, rows)
    ones = torch.ones(len(rows), device=device)
    counts = torch.ones(len(rows), dtype=torch.int64, device=device)
    kernels.sample(logits, ones, counts, ones * 0.5, ones * 0.1, counts, counts)
