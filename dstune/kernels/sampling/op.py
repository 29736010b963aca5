"""Sampling: which function serves which backend."""

from dstune.kernels.later import backends
from dstune.kernels.sampling import cpu, reference

SAMPLE = backends(reference.sample, cpu.sample)
