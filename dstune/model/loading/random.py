"""Random weights of any shape: speed and memory are real, the text is not.

Nothing is kept: a 16-billion-parameter shape is made, packed and forgotten tensor by tensor.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dstune.architecture import ModelShape
from dstune.errors import ModelError
from dstune.model.loading.digest import Digest
from dstune.model.loading.weights import expected_tensors

WEIGHTS_PER_WORD = 4  # int16 out of uint64
CHUNK = 2**15  # weights at a time: they stay in the cache, and torch wakes no second thread
GATE_BIAS_STD = 0.01  # enough to change which experts are chosen, too little to starve one


class RandomWeights:
    """bf16 weights that depend on (seed, tensor name) alone, whatever is taken before.

    Matrices are uniform with standard deviation 1/sqrt(in_features), which keeps activations near
    unit size through any depth; norms are 1, biases 0, V3's gating bias is fp32 as published.
    """

    def __init__(self, shape: ModelShape, seed: int = 0) -> None:
        self._name = shape.name
        self._seed = seed
        self._sizes = dict(expected_tensors(shape))

    def take(self, name: str) -> Tensor:
        """Make the tensor; raises `ModelError` for a name that the shape does not have."""
        if name not in self._sizes:
            raise ModelError(f"{self._name}: tensor {name!r} is missing in this shape")
        size = self._sizes[name]
        if name.endswith("e_score_correction_bias"):
            return self._uniform(name, size, GATE_BIAS_STD).float()
        if name.endswith("norm.weight"):
            return torch.ones(size, dtype=torch.bfloat16)
        if name.endswith(".bias"):
            return torch.zeros(size, dtype=torch.bfloat16)
        return self._uniform(name, size, size[-1] ** -0.5)

    def has(self, name: str) -> bool:
        """Whether the shape has that tensor."""
        return name in self._sizes

    def _uniform(self, name: str, size: tuple[int, ...], std: float) -> Tensor:
        # Raw SFC64 words are the same in every numpy version, and with no normal distribution to
        # compute they come several times faster: 16B weights within a minute.
        key = hashlib.sha256(f"{self._seed}/{name}".encode()).digest()
        source = np.random.SFC64(int.from_bytes(key[:16], "little"))
        out = torch.empty(math.prod(size), dtype=torch.bfloat16)
        # int16 is uniform on +-2**15, whose standard deviation is 2**15 / sqrt(3)
        scale = std * math.sqrt(3) / 2**15
        for chunk in torch.split(out, CHUNK):
            words = torch.from_numpy(source.random_raw(-(-len(chunk) // WEIGHTS_PER_WORD)))
            chunk.copy_(words.view(torch.int16)[: len(chunk)]).mul_(scale)
        return out.view(size)


def random_digest(shape: ModelShape, seed: int = 0) -> str:
    """Identifies random weights: the shape without its name, and the seed."""
    digest = Digest()
    digest.add("random", f"{seed} {replace(shape, name='')!r}".encode())
    return digest.hexdigest()
