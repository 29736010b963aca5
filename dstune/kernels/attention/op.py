"""Attention: which function serves which backend."""

from dstune.kernels.attention import cpu, reference
from dstune.kernels.later import backends

PAGED_ATTENTION = backends(reference.paged_attention, cpu.paged_attention)
LATENT_ATTENTION = backends(reference.latent_attention, cpu.latent_attention)
DENSE_ATTENTION = backends(reference.dense_attention, cpu.dense_attention)
