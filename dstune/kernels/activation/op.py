"""SwiGLU's gate: which function serves which backend."""

from dstune.kernels.activation import cpu, reference

SILU_AND_MUL = {"reference": reference.silu_and_mul, "cpu": cpu.silu_and_mul}
