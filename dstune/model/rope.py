"""Tables of rotary position embedding, with the scalings that published models use."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dstune.architecture import LinearScaling, Llama3Scaling, RopeShape, YarnScaling
from dstune.kernels.batch import Rotation


def make_rotation(rope: RopeShape, max_len: int, device: torch.device) -> Rotation:
    """The tables for positions below `max_len`, YaRN's multiplier included."""
    positions = torch.arange(max_len, dtype=torch.float32)
    angles = torch.outer(positions, inverse_frequencies(rope))
    multiplier = rope.scaling.table_multiplier if isinstance(rope.scaling, YarnScaling) else 1.0
    cos, sin = (table.mul(multiplier).to(device) for table in (angles.cos(), angles.sin()))
    return Rotation(cos, sin, rope.interleaved)


def inverse_frequencies(rope: RopeShape) -> Tensor:
    """Radians per position, fp32 [dim / 2]."""
    exponents = torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim
    plain = 1.0 / rope.theta**exponents
    match rope.scaling:
        case None:
            return plain
        case LinearScaling(factor):
            return plain / factor
        case YarnScaling():
            return _yarn(plain, rope, rope.scaling)
        case Llama3Scaling():
            return _llama3(plain, rope.scaling)


def _yarn(plain: Tensor, rope: RopeShape, yarn: YarnScaling) -> Tensor:
    """Interpolates dimensions that turn seldom, keeps those that turn often (arXiv 2309.00071)."""

    def dimension_of(turns: float) -> float:
        ratio = yarn.original_max_position / (turns * 2 * math.pi)
        return rope.dim * math.log(ratio) / (2 * math.log(rope.theta))

    low = max(math.floor(dimension_of(yarn.beta_fast)), 0)
    high = min(math.ceil(dimension_of(yarn.beta_slow)), rope.dim - 1)
    steps = torch.arange(rope.dim // 2, dtype=torch.float32)
    ramp = ((steps - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain / yarn.factor * ramp + plain * (1 - ramp)


def _llama3(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    wavelength = 2 * math.pi / plain
    turns = scaling.original_max_position / wavelength
    band = scaling.high_freq_factor - scaling.low_freq_factor
    smooth = ((turns - scaling.low_freq_factor) / band).clamp(0, 1)
    return plain / scaling.factor * (1 - smooth) + plain * smooth
