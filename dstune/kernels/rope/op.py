"""Rotary position embedding: which function serves which backend."""

from dstune.kernels.later import backends
from dstune.kernels.rope import cpu, reference

APPLY_ROPE = backends(reference.apply_rope, cpu.apply_rope)
