"""SwiGLU's gate: which function serves which backend."""

from dstune.kernels.activation import cpu, reference
from dstune.kernels.later import backends

SILU_AND_MUL = backends(reference.silu_and_mul, cpu.silu_and_mul)
