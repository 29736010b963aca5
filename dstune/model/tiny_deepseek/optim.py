"""Muon for the matrices inside the layers, AdamW for everything else."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

# Coefficients of the "Polar Express" iteration, each optimal for the range the last one leaves.
_QUINTICS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
)
# AdamW's share of the peak rate, by a part of the parameter's name.
_ADAM_SHARES = {"embed_tokens": 1.0, "lm_head": 0.3, "norm": 0.3, "mlp.gate.weight": 0.2}


def orthogonalize(matrices: Tensor) -> Tensor:
    """Replace the singular values of a stack [N, out, in] by about one; returns bf16."""
    x = matrices.bfloat16()
    tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) * 1.02 + 1e-7)
    for a, b, c in _QUINTICS:
        gram = x @ x.transpose(1, 2)
        # In place rather than fused (baddbmm), which copies its addend first and is far slower.
        factor = torch.bmm(gram, gram).mul_(c).add_(gram, alpha=b)
        x = torch.bmm(factor, x).add_(x, alpha=a)
    return x.transpose(1, 2) if tall else x


class Muon:
    """Orthogonalized momentum; equal shapes are updated together as one batched product."""

    def __init__(self, parameters: list[nn.Parameter], decay: float, momentum: float = 0.95):
        self.decay, self.momentum = decay, momentum
        self.groups: dict[tuple[int, int], list[nn.Parameter]] = defaultdict(list)
        for parameter in parameters:
            # Gate and up projections share a stack of twice the inner size: separate matrices.
            stacked = parameter.dim() == 3 and parameter.shape[1] > parameter.shape[2]
            rows = parameter.shape[-2] // (2 if stacked else 1)
            self.groups[rows, parameter.shape[-1]].append(parameter)
        self.buffers = {
            shape: torch.zeros(sum(p.numel() for p in group) // (shape[0] * shape[1]), *shape)
            for shape, group in self.groups.items()
        }

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One update; `rate` is the root mean square change of a weight, times five."""
        for (rows, columns), group in self.groups.items():
            gradients = torch.cat([_gradient(p).view(-1, rows, columns) for p in group])
            buffer = self.buffers[rows, columns]
            buffer.lerp_(gradients, 1 - self.momentum)
            update = orthogonalize(gradients.lerp_(buffer, self.momentum))
            scale = 0.2 * max(rows, columns) ** 0.5 * rate
            counts = [p.numel() // (rows * columns) for p in group]
            for parameter, change in zip(group, update.split_with_sizes(counts), strict=True):
                parameter.mul_(1 - rate * self.decay)
                parameter.sub_(change.float().view_as(parameter), alpha=scale)

    def zero_grad(self) -> None:
        """Clear the gradients."""
        for group in self.groups.values():
            for parameter in group:
                parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """The momentum buffers."""
        return {"buffers": self.buffers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over saved momentum buffers."""
        self.buffers = state["buffers"]


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


class Optimizer:
    """Both optimizers behind one step; rates are peak rates times the schedule's factor."""

    def __init__(self, network: nn.Module, rate: float, decay: float) -> None:
        groups: dict[str, list[nn.Parameter]] = {key: [] for key in _ADAM_SHARES}
        matrices: list[nn.Parameter] = []
        for name, parameter in network.named_parameters():
            key = next((key for key in _ADAM_SHARES if key in name), None)
            (groups[key] if key else matrices).append(parameter)
        self.rate, self.shares = rate, list(_ADAM_SHARES.values())
        self.muon = Muon(matrices, decay)
        self.adam = torch.optim.AdamW(
            [{"params": group} for group in groups.values()], betas=(0.9, 0.95), weight_decay=0.01
        )

    def step(self, factor: float) -> None:
        """Update all weights from their gradients, then clear the gradients."""
        for group, share in zip(self.adam.param_groups, self.shares, strict=True):
            group["lr"] = self.rate * share * factor
        self.adam.step()
        self.muon.step(self.rate * factor)
        self.adam.zero_grad()
        self.muon.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """State of both optimizers."""
        return {"adam": self.adam.state_dict(), "muon": self.muon.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of both optimizers."""
        self.adam.load_state_dict(state["adam"])
        self.muon.load_state_dict(state["muon"])
