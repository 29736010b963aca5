"""Expert gates: which function serves which backend."""

from dstune.kernels.gating import cpu, reference
from dstune.kernels.later import backends

GATE_SOFTMAX = backends(reference.gate_softmax, cpu.gate_softmax)
GATE_SIGMOID = backends(reference.gate_sigmoid, cpu.gate_sigmoid)
