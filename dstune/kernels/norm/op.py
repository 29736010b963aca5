"""RMSNorm: which function serves which backend."""

from dstune.kernels.norm import cpu, reference

RMS_NORM = {"reference": reference.rms_norm, "cpu": cpu.rms_norm}
ADD_RMS_NORM = {"reference": reference.add_rms_norm, "cpu": cpu.add_rms_norm}
