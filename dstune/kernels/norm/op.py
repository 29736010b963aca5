"""RMSNorm: which function serves which backend."""

from dstune.kernels.later import Later
from dstune.kernels.norm import cpu, reference

_TRITON = "dstune.kernels.norm.triton"
RMS_NORM = {
    "reference": reference.rms_norm,
    "cpu": cpu.rms_norm,
    "triton": Later(_TRITON, "rms_norm"),
}
ADD_RMS_NORM = {
    "reference": reference.add_rms_norm,
    "cpu": cpu.add_rms_norm,
    "triton": Later(_TRITON, "add_rms_norm"),
}
