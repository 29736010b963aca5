"""Routed experts: which function serves which backend."""

from dstune.kernels.experts import cpu, reference
from dstune.kernels.later import backends

PACK_EXPERTS = backends(reference.pack_experts, cpu.pack_experts)
