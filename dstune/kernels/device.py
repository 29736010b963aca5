"""What a kernel's wrapper must know of a GPU to choose its tiles and splits."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch

from dstune.kernels.precision import FP8_CAPABILITY


@dataclass(frozen=True)
class Gpu:
    """A device as wrappers see it."""

    name: str
    capability: int  # major * 10 + minor
    num_multiprocessors: int
    shared_memory_bytes: int  # that one block may use, opt-in

    @property
    def has_fp8(self) -> bool:
        """Whether the tensor cores take e4m3."""
        return self.capability >= FP8_CAPABILITY


# Published targets of ahead-of-time compilation. Source: CUDA C programming guide, table of
# technical specifications per compute capability; multiprocessors of A100, L40S and H100 SXM.
SM_80 = Gpu("sm_80", 80, 108, 166_912)
SM_89 = Gpu("sm_89", 89, 142, 101_376)
SM_90 = Gpu("sm_90", 90, 132, 232_448)
TARGETS = {gpu.name: gpu for gpu in (SM_80, SM_89, SM_90)}
INTERPRETER = Gpu("interpreter", 90, 4, 232_448)

_pretended: list[Gpu] = []


def gpu_of(device: torch.device) -> Gpu:
    """Return the GPU of a device; the pretended one where `pretending`, else the real one."""
    if _pretended:
        return _pretended[-1]
    return _real(device.index) if device.type == "cuda" else INTERPRETER


@cache
def _real(index: int | None) -> Gpu:
    from triton.runtime import driver  # needs a CUDA device to load

    found = torch.cuda.get_device_properties(index or 0)
    limits = driver.active.utils.get_device_properties(index or 0)
    return Gpu(
        found.name,
        found.major * 10 + found.minor,
        found.multi_processor_count,
        limits["max_shared_mem"],
    )


@contextmanager
def pretending(gpu: Gpu) -> Iterator[None]:
    """Make `gpu_of` answer `gpu`, whatever the device."""
    _pretended.append(gpu)
    try:
        yield
    finally:
        _pretended.pop()
