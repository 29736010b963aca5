"""The shape of the network, as its config.json states it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class NetworkConfig:
    """The fields of config.json that shape the network."""

    hidden_size: int
    num_hidden_layers: int
    first_k_dense_replace: int
    num_attention_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    intermediate_size: int
    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    n_group: int
    topk_group: int
    routed_scaling_factor: float
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any]
    max_position_embeddings: int
    vocab_size: int

    @staticmethod
    def read(path: Path) -> NetworkConfig:
        """Read the fields from a config.json."""
        values = json.loads(path.read_text())
        return NetworkConfig(**{f.name: values[f.name] for f in fields(NetworkConfig)})

    @property
    def qk_head_dim(self) -> int:
        """Query and key width of one head: the plain and the rotated part."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def softmax_scale(self) -> float:
        """Factor on the attention scores, with YaRN's temperature."""
        yarn = self.rope_scaling
        mscale = 0.1 * yarn["mscale_all_dim"] * math.log(yarn["factor"]) + 1.0
        return float(self.qk_head_dim**-0.5 * mscale * mscale)
