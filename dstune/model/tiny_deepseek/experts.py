"""The mixture of experts and its gating.

Shapes use T tokens, D hidden size, E routed experts and K experts per token.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dstune.model.tiny_deepseek.architecture import NetworkConfig
from dstune.model.tiny_deepseek.grouped import grouped_linear, regroup, ungroup
from dstune.model.tiny_deepseek.layers import GatedMLP


class Router(nn.Module):
    """Group-limited sigmoid gating, balanced by a bias instead of an auxiliary loss."""

    e_score_correction_bias: Tensor
    load: Tensor

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        experts = config.n_routed_experts
        self.weight = nn.Parameter(torch.randn(experts, config.hidden_size) * 0.02)
        self.register_buffer("e_score_correction_bias", torch.zeros(experts))
        self.register_buffer("load", torch.zeros(experts), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Expert indices and fp32 weights, both [T, K], for tokens [T, D]."""
        c = self.config
        scores = torch.sigmoid(F.linear(x.float(), self.weight))
        with torch.no_grad():
            choice = scores + self.e_score_correction_bias
            grouped = choice.view(len(x), c.n_group, -1)
            groups = grouped.topk(2, dim=-1).values.sum(-1).topk(c.topk_group, dim=-1).indices
            dropped = torch.ones(len(x), c.n_group, dtype=torch.bool).scatter_(1, groups, False)
            choice = grouped.masked_fill(dropped[..., None], float("-inf")).flatten(1)
            experts = choice.topk(c.num_experts_per_tok, dim=-1).indices
            self.load += torch.bincount(experts.flatten(), minlength=c.n_routed_experts)
        weights = scores.gather(1, experts)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * c.routed_scaling_factor
        return experts, weights

    @torch.no_grad()
    def rebalance(self, step: float) -> Tensor:
        """Move the bias toward balance; returns the load share of each expert since last time."""
        share = self.load / self.load.sum()
        self.e_score_correction_bias += step * torch.sign(share.mean() - share)
        # Only differences matter; a non-negative bias also suits gates that mask with zero.
        self.e_score_correction_bias -= self.e_score_correction_bias.min().clone()
        self.load.zero_()
        return share


class MixtureOfExperts(nn.Module):
    """Routed experts, run grouped by expert, plus the shared expert."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        experts, hidden, inner = (
            config.n_routed_experts,
            config.hidden_size,
            config.moe_intermediate_size,
        )
        self.gate = Router(config)
        self.gate_up = nn.Parameter(torch.randn(experts, 2 * inner, hidden) * hidden**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, inner) * inner**-0.5)
        self.shared_experts = GatedMLP(hidden, inner * config.n_shared_experts)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens [B, S, D] to the same shape."""
        tokens = x.flatten(0, 1)
        experts, weights = self.gate(tokens)
        order = experts.flatten().argsort(stable=True)
        counts = torch.bincount(experts.flatten(), minlength=len(self.down)).tolist()
        rows = regroup(tokens, order, experts.shape[1])
        gate, up = grouped_linear(rows, self.gate_up, counts).chunk(2, dim=-1)
        rows = grouped_linear(F.silu(gate) * up, self.down, counts)
        routed = ungroup(rows, order, weights)
        return routed.view_as(x) + self.shared_experts(x)  # type: ignore[no-any-return]
