"""Routed experts: which function serves which backend."""

from dstune.kernels.experts import cpu, reference

PACK_EXPERTS = {"reference": reference.pack_experts, "cpu": cpu.pack_experts}
