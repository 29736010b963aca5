"""Rotary position embedding in plain torch."""

from torch import Tensor


def apply_rope(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> None:
    """Rotate x [T, H, D] in place by the angles of positions int64 [T].

    cos, sin fp32 [max_len, D / 2]. Interleaved pairs are (0, 1), (2, 3), ... (DeepSeek, GGUF);
    otherwise (0, D/2), (1, D/2 + 1), ... (Llama in Hugging Face's layout). Source: Su et al. 2021.
    """
    if interleaved:
        first, second = x[..., 0::2], x[..., 1::2]
    else:
        first, second = x.chunk(2, dim=-1)
    c, s = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
    a, b = first.float(), second.float()
    rotated_first, rotated_second = a * c - b * s, b * c + a * s
    first.copy_(rotated_first)
    second.copy_(rotated_second)
