"""Sampling: which function serves which backend."""

from dstune.kernels.later import Later
from dstune.kernels.sampling import cpu, reference

_TRITON = "dstune.kernels.sampling.triton"
SAMPLE = {
    "reference": reference.sample,
    "cpu": cpu.sample,
    "triton": Later(_TRITON, "sample"),
}
