"""RMSNorm: which function serves which backend."""

from dstune.kernels.later import backends
from dstune.kernels.norm import cpu, reference

RMS_NORM = backends(reference.rms_norm, cpu.rms_norm)
ADD_RMS_NORM = backends(reference.add_rms_norm, cpu.add_rms_norm)
