"""Fresh memory full of NaN, so that what a kernel forgets to write shows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def poisoned() -> Iterator[None]:
    """Fill what torch.empty and its kin return with NaN, integers with -1."""
    plain = torch.empty, torch.empty_like, Tensor.new_empty
    torch.empty, torch.empty_like, Tensor.new_empty = map(_filled, plain)  # type: ignore
    try:
        yield
    finally:
        torch.empty, torch.empty_like, Tensor.new_empty = plain  # type: ignore


def _filled(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def empty(*args: Any, **options: Any) -> Tensor:
        tensor = plain(*args, **options)
        if tensor.is_meta:
            return tensor
        return tensor.fill_(torch.nan if tensor.is_floating_point() else -1)

    return empty
