"""The training-time network: DeepSeek-V3's architecture in plain torch, batched for a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dstune.model.tiny_deepseek.architecture import NetworkConfig
from dstune.model.tiny_deepseek.attention import Attention, yarn_angles
from dstune.model.tiny_deepseek.experts import MixtureOfExperts, Router
from dstune.model.tiny_deepseek.layers import GatedMLP, Linear, Norm


class Block(nn.Module):
    """One decoder layer."""

    def __init__(self, config: NetworkConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        dense = layer < config.first_k_dense_replace
        self.mlp: nn.Module = (
            GatedMLP(config.hidden_size, config.intermediate_size)
            if dense
            else MixtureOfExperts(config)
        )
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x, dtype), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x, dtype))  # type: ignore[no-any-return]


class Network(nn.Module):
    """The whole model, from token ids to logits."""

    def __init__(self, config: NetworkConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        self.embed_tokens = nn.Parameter(torch.randn(config.vocab_size, config.hidden_size) * 0.25)
        blocks = [Block(config, layer) for layer in range(config.num_hidden_layers)]
        self.layers = nn.ModuleList(blocks)
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = Linear(config.hidden_size, config.vocab_size)
        self._angles = yarn_angles(config, config.max_position_embeddings)
        with torch.no_grad():
            self.lm_head.weight.mul_(0.25)
            for block in blocks:
                # Residual branches start small so that depth does not scale the stream.
                block.self_attn.o_proj.weight.mul_(0.2)
                mlp = block.mlp
                down = [m.down_proj.weight for m in mlp.modules() if isinstance(m, GatedMLP)]
                for weight in [*down, *([mlp.down] if isinstance(mlp, MixtureOfExperts) else [])]:
                    weight.mul_(0.2)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [B, S, vocab] in fp32 for token ids [B, S]."""
        angles = self._angles[: tokens.shape[1], None]
        cos, sin = angles.cos(), angles.sin()
        x = F.embedding(tokens, self.embed_tokens)
        for block in self.layers:
            x = block(x, cos, sin, self.dtype)
        return self.lm_head(self.norm(x, self.dtype)).float()  # type: ignore[no-any-return]

    def routers(self) -> list[Router]:
        """The routers of the expert layers, first layer first."""
        return [m for m in self.modules() if isinstance(m, Router)]
