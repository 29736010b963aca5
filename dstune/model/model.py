"""What the engine asks of a model, whatever its architecture, and how one is made."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from dstune.architecture import ModelShape
from dstune.errors import ModelError
from dstune.kernels.batch import AttentionBatch
from dstune.kernels.select import Kernels
from dstune.model.deepseek import DeepseekModel
from dstune.model.llama import LlamaModel
from dstune.model.loading.weights import Weights
from dstune.model.precision import Precision

LayerCache = TypeVar("LayerCache")  # KvLayer or LatentLayer; only the model looks inside


class Model(Protocol[LayerCache]):
    """A causal language model over a paged KV cache."""

    shape: ModelShape
    precision: Precision
    num_weight_bytes: int

    def allocate_cache(
        self, num_blocks: int, block_size: int, dtype: torch.dtype
    ) -> list[LayerCache]:
        """An empty cache of one entry per layer."""

    def forward(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        cache: list[LayerCache],
        logits_rows: Tensor,
    ) -> Tensor:
        """Writes the tokens' KV and returns logits, fp32 [num_logits_rows, vocab_size].

        token_ids: int64 [num_tokens].
        """


def build_model(
    shape: ModelShape, weights: Weights, kernels: Kernels, precision: Precision
) -> Model[Any]:
    """Packs a checkpoint's weights for these kernels, one tensor at a time."""
    match shape.family:
        case "llama":
            return LlamaModel(shape, weights, kernels, precision)
        case "deepseek":
            return DeepseekModel(shape, weights, kernels, precision)
    raise ModelError(f"{shape.name}: no model code for family {shape.family!r}")
