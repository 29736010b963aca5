"""What the device reaches where nothing else is in the way, measured when a trace begins."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dstune.kernels.select import Kernels
from dstune.kernels.workbench.timing import MATMUL_SIZE, measure_ceilings, timer_for
from dstune.model.precision import Precision


@dataclass(frozen=True)
class Ceilings:
    """Rates that an operation can at best have."""

    copy_bytes_per_s: float  # read and written, both counted
    flops_per_s: float  # of the precision in use


def device_ceilings(kernels: Kernels, precision: Precision) -> Ceilings:
    """A large copy; and the better of torch's product in the activations' type and of the
    engine's own in its precision, which for int8 and fp8 has other instructions.
    """
    device, dtype = precision.device, precision.activations
    timer = timer_for(device)
    reached = measure_ceilings(device, timer, [dtype])
    size = MATMUL_SIZE[device.type]
    weight, x = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    layer = kernels.pack_linear(weight, None, precision.name, dtype)
    took = timer.time({"product": lambda: layer(x)})["product"]
    rates = [*reached.matmul_flops_per_s.values(), 2 * size**3 / took.median_s]
    return Ceilings(reached.copy_bytes_per_s, max(rates))
