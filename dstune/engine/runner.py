"""Runs a step on the device: holds the model and its cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dstune.engine.batch import build_input
from dstune.engine.graphs import Capture, DecodeGraphs
from dstune.engine.memory import CacheSize
from dstune.engine.request import Request
from dstune.engine.sampler import Choice, choose_tokens
from dstune.engine.scheduler import StepPlan
from dstune.errors import KnobError
from dstune.kernels.select import Kernels
from dstune.model.model import Model


class Runner:
    """A model with its cache; decode steps replay graphs where `capture` is given."""

    build_input = staticmethod(build_input)
    choose_tokens = staticmethod(choose_tokens)

    def __init__(
        self, model: Model[Any], kernels: Kernels, size: CacheSize, capture: Capture | None = None
    ) -> None:
        self.model = model
        self.kernels = kernels
        self.size = size
        try:
            self._cache = model.allocate_cache(size.num_blocks, size.block_size, size.dtype)
        except torch.OutOfMemoryError as error:
            raise KnobError(
                f"the KV cache of {size.num_bytes} bytes does not fit on {model.precision.device}: "
                "lower gpu_memory_utilization or kv_cache_memory_bytes"
            ) from error
        self._graphs: DecodeGraphs | None = None
        if capture is not None:
            self._graphs = DecodeGraphs(
                model, self._cache, size.max_model_len, size.block_size, capture
            )

    @torch.inference_mode()
    def prepare(self, max_num_seqs: int) -> None:
        """Capture what steps of up to max_num_seqs decodes need; nothing without graphs."""
        if self._graphs is not None:
            self._graphs.prepare(max_num_seqs)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> list[Choice]:
        """Computes a step: one choice per share that yields a token, in the plan's order."""
        is_decode = all(one.num_tokens == 1 and one.yields_token for one in plan.scheduled)
        device = self.model.precision.device
        if self._graphs is not None and is_decode:
            logits = self._graphs.run(
                self.build_input(plan, self.size.block_size, torch.device("cpu"))
            )
        else:
            step = self.build_input(plan, self.size.block_size, device)
            logits = self.model.forward(
                step.token_ids, step.attention, self._cache, step.logits_rows
            )
        yielding: Sequence[Request] = [one.request for one in plan.scheduled if one.yields_token]
        return self.choose_tokens(logits, yielding, self.kernels) if yielding else []
