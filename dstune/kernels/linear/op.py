"""Linear layers: which function serves which backend."""

from dstune.kernels.later import backends
from dstune.kernels.linear import cpu, reference

PACK_LINEAR = backends(reference.pack_linear, cpu.pack_linear)
