"""Attention: which function serves which backend."""

from dstune.kernels.attention import cpu, reference
from dstune.kernels.later import Later

_TRITON = "dstune.kernels.attention.triton"
PAGED_ATTENTION = {
    "reference": reference.paged_attention,
    "cpu": cpu.paged_attention,
    "triton": Later(_TRITON, "paged_attention"),
}
LATENT_ATTENTION = {
    "reference": reference.latent_attention,
    "cpu": cpu.latent_attention,
    "triton": Later(_TRITON, "latent_attention"),
}
DENSE_ATTENTION = {
    "reference": reference.dense_attention,
    "cpu": cpu.dense_attention,
    "triton": Later(_TRITON, "dense_attention"),
}
