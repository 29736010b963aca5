"""Linear layers: which function serves which backend."""

from dstune.kernels.linear import cpu, reference

PACK_LINEAR = {"reference": reference.pack_linear, "cpu": cpu.pack_linear}
