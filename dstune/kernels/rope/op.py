"""Rotary position embedding: which function serves which backend."""

from dstune.kernels.later import Later
from dstune.kernels.rope import cpu, reference

_TRITON = "dstune.kernels.rope.triton"
APPLY_ROPE = {
    "reference": reference.apply_rope,
    "cpu": cpu.apply_rope,
    "triton": Later(_TRITON, "apply_rope"),
}
