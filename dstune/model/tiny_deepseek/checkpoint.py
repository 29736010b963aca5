"""Converts the training network to and from published DeepSeek-V3 tensor names."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dstune.model.tiny_deepseek.network import Network


def published_tensors(network: Network) -> dict[str, Tensor]:
    """The network's fp32 tensors under published names, one tensor per expert matrix."""
    tensors: dict[str, Tensor] = {}
    for name, value in network.state_dict().items():
        if name == "lm_head.weight":
            tensors[name] = value
        elif name == "embed_tokens":
            tensors["model.embed_tokens.weight"] = value
        elif name.endswith("mlp.gate_up"):
            prefix = f"model.{name.removesuffix('gate_up')}experts"
            for expert, matrix in enumerate(value):
                gate, up = matrix.chunk(2)
                tensors[f"{prefix}.{expert}.gate_proj.weight"] = gate
                tensors[f"{prefix}.{expert}.up_proj.weight"] = up
        elif name.endswith("mlp.down"):
            prefix = f"model.{name.removesuffix('down')}experts"
            for expert, matrix in enumerate(value):
                tensors[f"{prefix}.{expert}.down_proj.weight"] = matrix
        else:
            tensors[f"model.{name}"] = value
    return tensors


def save_published(network: Network, path: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write the tensors in `dtype`; the gating bias stays fp32, as published."""
    tensors = {
        name: value.to(torch.float32 if name.endswith("correction_bias") else dtype).contiguous()
        for name, value in published_tensors(network).items()
    }
    # Clones, because slices of one expert stack share memory, which the format refuses.
    save_file({k: v.clone() for k, v in sorted(tensors.items())}, path, metadata={"format": "pt"})


def load_published(network: Network, path: Path) -> None:
    """Load a published checkpoint into the network, widened to fp32."""
    tensors = load_file(path)
    with torch.no_grad():
        # The published tensors are views of the network's own, so copying fills it in place.
        for name, value in published_tensors(network).items():
            value.copy_(tensors.pop(name))
    if tensors:
        raise ValueError(f"tensors of no known place: {sorted(tensors)}")
