"""Routed experts: which function serves which backend."""

from dstune.kernels.experts import cpu, reference
from dstune.kernels.later import Later

_TRITON = "dstune.kernels.experts.triton"
PACK_EXPERTS = {
    "reference": reference.pack_experts,
    "cpu": cpu.pack_experts,
    "triton": Later(_TRITON, "pack_experts"),
}
