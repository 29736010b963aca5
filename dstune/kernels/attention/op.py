"""Attention: which function serves which backend."""

from dstune.kernels.attention import cpu, reference

PAGED_ATTENTION = {"reference": reference.paged_attention, "cpu": cpu.paged_attention}
LATENT_ATTENTION = {"reference": reference.latent_attention, "cpu": cpu.latent_attention}
DENSE_ATTENTION = {"reference": reference.dense_attention, "cpu": cpu.dense_attention}
