"""Expert gates: which function serves which backend."""

from dstune.kernels.gating import cpu, reference

GATE_SOFTMAX = {"reference": reference.gate_softmax, "cpu": cpu.gate_softmax}
GATE_SIGMOID = {"reference": reference.gate_sigmoid, "cpu": cpu.gate_sigmoid}
