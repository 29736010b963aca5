"""SwiGLU's gate: which function serves which backend."""

from dstune.kernels.activation import cpu, reference
from dstune.kernels.later import Later

_TRITON = "dstune.kernels.activation.triton"
SILU_AND_MUL = {
    "reference": reference.silu_and_mul,
    "cpu": cpu.silu_and_mul,
    "triton": Later(_TRITON, "silu_and_mul"),
}
