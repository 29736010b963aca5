"""Parts that every architecture shares: packed projections, the gated feed-forward, the ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from dstune.architecture import ModelShape
from dstune.kernels.select import Experts, Kernels, Linear
from dstune.model.loading.weights import Weights
from dstune.model.precision import Precision


class Packer:
    """Takes tensors from a checkpoint and packs them for one set of kernels."""

    def __init__(self, weights: Weights, kernels: Kernels, precision: Precision) -> None:
        self._weights = weights
        self._kernels = kernels
        self._precision = precision
        self.num_bytes = 0

    def take(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor on the device, as activations or in `dtype`; counted as weight bytes."""
        wanted = dtype or self._precision.activations
        tensor = self._weights.take(name).to(self._precision.device, wanted).contiguous()
        self.num_bytes += tensor.numel() * tensor.element_size()
        return tensor

    def raw(self, name: str) -> Tensor:
        """A tensor as stored, on the device, not counted: it is about to be packed."""
        return self._weights.take(name).to(self._precision.device)

    def linear(self, *names: str) -> Linear:
        """One product for several weights [out, in] that share their input, outputs side by side.

        A `.bias` beside each weight is used where the checkpoint has one.
        """
        parts = [self.raw(f"{name}.weight") for name in names]
        has_bias = self._weights.has(f"{names[0]}.bias")
        bias = torch.cat([self.raw(f"{name}.bias") for name in names]) if has_bias else None
        return self.pack(parts[0] if len(parts) == 1 else torch.cat(parts), names, bias)

    def pack(self, weight: Tensor, names: Sequence[str], bias: Tensor | None = None) -> Linear:
        """Packs a weight [out, in] that the checkpoint's tensors `names` make up."""
        packed = self._kernels.pack_linear(
            weight, bias, self._precision.name, self._precision.activations
        )
        self.num_bytes += packed.num_bytes
        named: Linear = self.named(f"linear.{layer_role(names)}", packed)
        return named

    def named(self, name: str, layer: Any) -> Any:
        """The layer, or what stands in its place where operations are watched."""
        wrap = self._kernels.wrap_layer
        return layer if wrap is None else wrap(name, layer)

    def experts(self, prefix: str, num_experts: int) -> Experts:
        """Routed experts from `prefix`.experts.E.{gate,up,down}_proj."""
        names = [f"{prefix}.experts.{index}" for index in range(num_experts)]
        gate_up = [
            torch.cat([self.raw(f"{one}.gate_proj.weight"), self.raw(f"{one}.up_proj.weight")])
            for one in names
        ]
        down = [self.raw(f"{one}.down_proj.weight") for one in names]
        packed = self._kernels.pack_experts(
            gate_up, down, self._precision.name, self._precision.activations
        )
        self.num_bytes += packed.num_bytes
        named: Experts = self.named("experts", packed)
        return named


def layer_role(names: Sequence[str]) -> str:
    """What a product of these tensors is for, the same in every block: `q_proj+k_proj+v_proj`.

    A tensor of a block is model.layers.N.PART.ROLE, where shared experts have a part of their own:
    `shared_experts.down_proj`.
    """
    roles = [name.split(".")[-1] for name in names]
    shared = "shared_experts." if ".shared_experts." in names[0] else ""
    return shared + "+".join(roles)


class PlainProduct:
    """A product that torch computes: x [..., M, in] with a weight [..., in, out]."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight
        self.in_features, self.out_features = weight.shape[-2:]
        self.num_bytes = weight.numel() * weight.element_size()

    def __call__(self, x: Tensor) -> Tensor:
        """[..., M, out], in the weight's type."""
        return x.to(self._weight.dtype) @ self._weight


class Embedding:
    """The rows of a table [vocab_size, hidden]."""

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def __call__(self, token_ids: Tensor) -> Tensor:
        """token_ids int64 [num_tokens] -> [num_tokens, hidden]."""
        return self.table[token_ids]


@dataclass(frozen=True)
class GatedMlp:
    """SwiGLU feed-forward: down(silu(gate(x)) * up(x))."""

    gate_up: Linear
    down: Linear
    kernels: Kernels

    @classmethod
    def load(cls, packer: Packer, kernels: Kernels, prefix: str) -> GatedMlp:
        """From `prefix`.{gate,up,down}_proj."""
        gate_up = packer.linear(f"{prefix}.gate_proj", f"{prefix}.up_proj")
        return cls(gate_up, packer.linear(f"{prefix}.down_proj"), kernels)

    def __call__(self, x: Tensor) -> Tensor:
        """x: [num_tokens, hidden] -> the same."""
        return self.down(self.kernels.silu_and_mul(self.gate_up(x)))


@dataclass(frozen=True)
class Ends:
    """Embedding, final norm and output projection."""

    embedding: Callable[[Tensor], Tensor]
    norm: Tensor
    head: Linear

    @classmethod
    def load(cls, packer: Packer, shape: ModelShape) -> Ends:
        """From the usual names; a tied head packs the embedding a second time."""
        embedding = packer.take("model.embed_tokens.weight")
        if shape.is_tied:
            head = packer.pack(packer.raw("model.embed_tokens.weight"), ["lm_head"])
        else:
            head = packer.linear("lm_head")
        named: Embedding = packer.named("embedding", Embedding(embedding))
        return cls(named, packer.take("model.norm.weight"), head)


class Block(Protocol):
    """What every decoder block has beside its attention."""

    @property
    def input_norm(self) -> Tensor: ...
    @property
    def post_norm(self) -> Tensor: ...
    @property
    def mlp(self) -> Callable[[Tensor], Tensor]: ...


@dataclass(frozen=True)
class Decoder:
    """The stack that pre-norm decoders share: attention and feed-forward on a residual stream."""

    ends: Ends
    blocks: Sequence[Block]
    kernels: Kernels
    eps: float

    def __call__(
        self,
        token_ids: Tensor,
        attend: Callable[[int, Tensor], Tensor],
        logits_rows: Tensor,
    ) -> Tensor:
        """Logits fp32 [num_logits_rows, vocab_size].

        `attend(index, hidden)` is the attention of one block, [num_tokens, hidden] -> the same.
        Rows whose logits nobody wants are dropped before the last norm.
        """
        kernels, eps = self.kernels, self.eps
        residual = self.ends.embedding(token_ids)
        hidden = kernels.rms_norm(residual, self.blocks[0].input_norm, eps)
        for index, block in enumerate(self.blocks):
            hidden = attend(index, hidden)
            hidden, residual = kernels.add_rms_norm(hidden, residual, block.post_norm, eps)
            hidden = block.mlp(hidden)
            if index + 1 < len(self.blocks):
                norm = self.blocks[index + 1].input_norm
            else:
                norm = self.ends.norm
                hidden, residual = hidden[logits_rows], residual[logits_rows]
            hidden, residual = kernels.add_rms_norm(hidden, residual, norm, eps)
        return self.ends.head(hidden).float()
