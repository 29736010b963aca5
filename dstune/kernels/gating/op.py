"""Expert gates: which function serves which backend."""

from dstune.kernels.gating import cpu, reference
from dstune.kernels.later import Later

_TRITON = "dstune.kernels.gating.triton"
GATE_SOFTMAX = {
    "reference": reference.gate_softmax,
    "cpu": cpu.gate_softmax,
    "triton": Later(_TRITON, "gate_softmax"),
}
GATE_SIGMOID = {
    "reference": reference.gate_sigmoid,
    "cpu": cpu.gate_sigmoid,
    "triton": Later(_TRITON, "gate_sigmoid"),
}
