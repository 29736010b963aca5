"""Sampling: which function serves which backend."""

from dstune.kernels.sampling import cpu, reference

SAMPLE = {"reference": reference.sample, "cpu": cpu.sample}
