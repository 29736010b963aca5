"""Runs a step on the device: holds the model, its cache, and the sizes that follow from both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from dstune.architecture import ModelShape
from dstune.engine.batch import build_input
from dstune.engine.config import EngineConfig
from dstune.engine.request import Request
from dstune.engine.sampler import Choice, choose_tokens
from dstune.engine.scheduler import StepPlan
from dstune.errors import KnobError
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
    total = psutil.virtual_memory().total
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
    if num_bytes is not None and num_bytes > total:
        raise KnobError(
            f"kv_cache_memory_bytes ({num_bytes}) is more than {device} has ({total} bytes)"
        )
    if num_bytes is None:
        used = model.num_weight_bytes + activation_bytes(shape, config)
        num_bytes = int(config.gpu_memory_utilization * total) - used
        if device.type == "cpu":
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
    if not config.enable_chunked_prefill and config.max_num_batched_tokens < longest:
        raise KnobError(
            f"max_num_batched_tokens ({config.max_num_batched_tokens}) must be at least "
            f"max_model_len ({longest}) when enable_chunked_prefill is false"
        )
    size = num_blocks * config.block_size * per_token
    return CacheSize(num_blocks, config.block_size, dtype, size, longest)


class Runner:
    """A model with its cache."""

    def __init__(self, model: Model[Any], kernels: Kernels, size: CacheSize) -> None:
        self.model = model
        self.kernels = kernels
        self.size = size
        self._cache = model.allocate_cache(size.num_blocks, size.block_size, size.dtype)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> list[Choice]:
        """Computes a step: one choice per share that yields a token, in the plan's order."""
        step = build_input(plan, self.size.block_size, self.model.precision.device)
        logits = self.model.forward(step.token_ids, step.attention, self._cache, step.logits_rows)
        yielding: Sequence[Request] = [one.request for one in plan.scheduled if one.yields_token]
        return choose_tokens(logits, yielding, self.kernels) if yielding else []
