"""The engine on a real model's shape with random weights: speed is real, the text is not."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from benchmarks.engine_runs import run_batch
from torch import Tensor

from dstune.architecture import ModelShape, published_shape
from dstune.engine.config import EngineConfig
from dstune.engine.engine import Engine
from dstune.model.loading.open import Checkpoint, open_checkpoint
from dstune.model.loading.weights import expected_tensors


@dataclass(frozen=True)
class Measured:
    """One batch from empty to done."""

    batch: int
    output_tokens_per_s: float  # prefill counted
    prefill_tokens_per_s: float
    decode_ms: float  # median step without prefill
    weight_share: float  # time to read the weights in use at copy bandwidth / that step


class DeviceWeights:
    """Random bf16 weights made on the device: a 16B shape in seconds."""

    def __init__(self, shape: ModelShape, device: torch.device) -> None:
        self._sizes = dict(expected_tensors(shape))
        self._device = device

    def has(self, name: str) -> bool:
        return name in self._sizes

    def take(self, name: str) -> Tensor:
        size = self._sizes[name]
        if name.endswith("norm.weight"):
            return torch.ones(size, dtype=torch.bfloat16, device=self._device)
        dtype = torch.float32 if name.endswith("correction_bias") else torch.bfloat16
        std = 0.01 if len(size) == 1 else 1 / math.sqrt(size[-1])
        return torch.randn(size, dtype=dtype, device=self._device).mul_(std)


def bytes_in_use(shape: ModelShape, batch: int) -> int:
    """bf16 weights that a decode step reads: all but the embedding and the experts not chosen.

    With more tokens than one, as many experts as `batch` random choices touch on average.
    """
    weights = shape.num_parameters() - shape.vocab_size * shape.hidden_size
    if shape.moe is not None:
        one = 3 * shape.hidden_size * shape.moe.intermediate_size
        layers = sum(shape.is_moe_layer(layer) for layer in range(shape.num_layers))
        missed = (1 - shape.moe.top_k / shape.moe.num_experts) ** batch
        weights -= int(layers * shape.moe.num_experts * missed) * one
    return 2 * weights


def copy_bytes_per_s(device: torch.device, num_bytes: int = 1 << 30) -> float:
    """Bytes read and written per second by a large copy, the best of a few."""
    source = torch.ones(num_bytes, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(5):
        synchronize(device)
        start = time.perf_counter()
        target.copy_(source)
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    return 2 * num_bytes / min(seconds)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def random_engine(shape: ModelShape, device: torch.device, **knobs: object) -> Engine:
    """An engine of that shape."""
    checkpoint = Checkpoint(shape.name, shape, DeviceWeights(shape, device), None, "random")
    values = {"max_model_len": 4096, "max_num_seqs": 64, "enable_prefix_caching": False, **knobs}
    return Engine(checkpoint, EngineConfig.from_knobs(values), device)


def run_shape(
    name: str, batches: Sequence[int], device: torch.device, **knobs: object
) -> Iterator[Measured]:
    """Measure each batch, after a run that warms up."""
    shape = published_shape(name) if name != "tiny-deepseek" else open_checkpoint(name).shape
    bandwidth = copy_bytes_per_s(device)
    engine = random_engine(shape, device, **knobs)
    for batch in batches:
        run_batch(engine, batch)
        steps = run_batch(engine, batch)
        decode = [one for one in steps if not one.num_prefill_tokens]
        prefill = [one for one in steps if not one.num_decode_tokens]
        step_s = statistics.median(one.end_ns - one.start_ns for one in decode) / 1e9
        prefill_s = sum(one.end_ns - one.start_ns for one in prefill) / 1e9
        whole_s = (steps[-1].end_ns - steps[0].start_ns) / 1e9
        yield Measured(
            batch=batch,
            output_tokens_per_s=sum(len(one.tokens) for one in steps) / whole_s,
            prefill_tokens_per_s=sum(one.num_prefill_tokens for one in prefill) / prefill_s,
            decode_ms=step_s * 1e3,
            weight_share=bytes_in_use(shape, batch) / bandwidth / step_s,
        )


def graphs_beside_eager(device: torch.device, num_layers: int = 8) -> float:
    """How many times as fast a decode step is with CUDA graphs, on a few layers of the shape."""
    shape = replace(published_shape("deepseek-v2-lite"), num_layers=num_layers)
    step_s = {}
    for is_eager in (False, True):
        engine = random_engine(shape, device, enforce_eager=is_eager, max_num_seqs=4)
        run_batch(engine, 1)
        decode = [one for one in run_batch(engine, 1) if not one.num_prefill_tokens]
        step_s[is_eager] = statistics.median(one.end_ns - one.start_ns for one in decode)
        del engine
    return step_s[True] / step_s[False]
