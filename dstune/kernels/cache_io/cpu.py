"""Cache writes as native calls; reading latents stays with torch, it only serves prefill."""

import torch
from torch import Tensor

from dstune.kernels.cache import KvLayer, LatentLayer
from dstune.kernels.cache_io.reference import gather_latent
from dstune.kernels.native import lib
from dstune.kernels.native.arguments import CODES, activation_code

__all__ = ["gather_latent", "write_kv", "write_latent"]


def write_kv(k: Tensor, v: Tensor, layer: KvLayer, slot_mapping: Tensor) -> None:
    """Store k, v [T, Hkv, D], which may be strided views; see the reference."""
    _write(k, layer.k, layer.k_scale, slot_mapping)
    _write(v, layer.v, layer.v_scale, slot_mapping)


def write_latent(latent: Tensor, rope: Tensor, layer: LatentLayer, slot_mapping: Tensor) -> None:
    """Store latent [T, R] and rope [T, P], which may be strided views; see the reference."""
    _write(latent.unsqueeze(1), layer.latent, layer.scale, slot_mapping)
    _write(rope.unsqueeze(1), layer.rope, None, slot_mapping)


def _write(x: Tensor, cache: Tensor, scale: Tensor | None, slot_mapping: Tensor) -> None:
    num_tokens, num_heads, dim = x.shape
    if x.stride(2) != 1:
        raise ValueError("a cache write needs a contiguous last dimension")
    lib().write_cache(
        x.data_ptr(), x.stride(0), x.stride(1), cache.data_ptr(),
        None if scale is None else scale.data_ptr(), slot_mapping.data_ptr(), num_tokens,
        num_heads, dim, activation_code(x), CODES[cache.dtype], torch.get_num_threads(),
    )  # fmt: skip
