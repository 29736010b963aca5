"""Linear layers: which function serves which backend."""

from dstune.kernels.later import Later
from dstune.kernels.linear import cpu, reference

_TRITON = "dstune.kernels.linear.triton"
PACK_LINEAR = {
    "reference": reference.pack_linear,
    "cpu": cpu.pack_linear,
    "triton": Later(_TRITON, "pack_linear"),
}
