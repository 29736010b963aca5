"""Rotary position embedding: which function serves which backend."""

from dstune.kernels.rope import cpu, reference

APPLY_ROPE = {"reference": reference.apply_rope, "cpu": cpu.apply_rope}
