"""DeepSeek's mixture of experts: routed experts chosen by a gate, beside shared ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dstune.architecture import MoeShape
from dstune.kernels.select import Experts, Kernels
from dstune.model.layers import GatedMlp, Packer, PlainProduct


@dataclass(frozen=True)
class MoeLayer:
    """The feed-forward of one mixture layer."""

    shape: MoeShape
    gate: Callable[[Tensor], Tensor]  # to fp32 [num_tokens, num_experts]: routing decides in it
    bias: Tensor | None  # fp32 [num_experts]; shifts the choice, never the weights
    experts: Experts
    shared: GatedMlp | None
    kernels: Kernels

    @classmethod
    def load(cls, packer: Packer, kernels: Kernels, prefix: str, shape: MoeShape) -> MoeLayer:
        """From `prefix`.{gate,experts.E,shared_experts}."""
        bias = None
        if shape.scoring == "sigmoid":
            bias = packer.take(f"{prefix}.gate.e_score_correction_bias", torch.float32)
        gate = packer.take(f"{prefix}.gate.weight", torch.float32)
        return cls(
            shape=shape,
            gate=packer.named("linear.gate", PlainProduct(gate.t())),
            bias=bias,
            experts=packer.experts(prefix, shape.num_experts),
            shared=GatedMlp.load(packer, kernels, f"{prefix}.shared_experts")
            if shape.num_shared
            else None,
            kernels=kernels,
        )

    def __call__(self, x: Tensor) -> Tensor:
        """x: [num_tokens, hidden] -> the same."""
        weights, ids = self._route(self.gate(x))
        mixed = self.experts(x, weights, ids)
        return mixed if self.shared is None else mixed + self.shared(x)

    def _route(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        shape = self.shape
        groups = (shape.n_group, shape.topk_group) if shape.has_groups else (1, 1)
        if shape.scoring == "sigmoid":
            return self.kernels.gate_sigmoid(
                logits,
                self.bias,
                shape.top_k,
                *groups,
                shape.routed_scaling_factor,
                shape.norm_topk_prob,
            )
        return self.kernels.gate_softmax(
            logits, shape.top_k, shape.routed_scaling_factor, shape.norm_topk_prob, *groups
        )
