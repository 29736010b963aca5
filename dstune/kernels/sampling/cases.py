"""What proves and what times sampling."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dstune.kernels.select import Kernels
from dstune.kernels.workbench.case import Case, Cost, Inputs

ATOL = 0.0  # the same tokens


@dataclass(frozen=True)
class _Options:
    """What a request asks for."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    @property
    def name(self) -> str:
        given = {"t": self.temperature, "k": self.top_k, "p": self.top_p, "m": self.min_p}
        return "_".join(f"{word}{value:g}" for word, value in given.items())


GREEDY = _Options(temperature=0.0)
MIXED = (
    GREEDY,
    _Options(),
    _Options(temperature=0.7, top_k=5),
    _Options(top_p=0.9),
    _Options(min_p=0.05),
    _Options(1.3, 40, 0.8, 0.01),
    _Options(temperature=3.0, top_p=0.999),
    _Options(top_k=900),
    _Options(top_k=300, top_p=0.5),
    _Options(top_p=0.0),
)

_Values = Callable[[tuple[int, int], torch.device], Tensor]


def _random(shape: tuple[int, int], device: torch.device) -> Tensor:
    return torch.randn(shape, device=device) * 3


def _tied(shape: tuple[int, int], device: torch.device) -> Tensor:
    return (torch.randn(shape, device=device) * 2).round()


def _equal(shape: tuple[int, int], device: torch.device) -> Tensor:
    return torch.full(shape, -1.5, device=device)


def _sparse(shape: tuple[int, int], device: torch.device) -> Tensor:
    """Most are -inf, as where a grammar allows few tokens."""
    allowed = torch.rand(shape, device=device) < 0.02
    return _random(shape, device).masked_fill(~allowed, -torch.inf)


def _peaked(shape: tuple[int, int], device: torch.device) -> Tensor:
    """Few hold most of the probability, as a language model's do."""
    return torch.randn(shape, device=device) - 4 * torch.rand(shape, device=device).log()


def checks() -> Iterator[Case]:
    """Every filter and their mixtures; ties; vocabularies below and above what a tile holds."""
    for values in (_random, _tied):
        for vocab in (1, 17, 1000):
            yield _sample(len(MIXED), vocab, values, MIXED)
    yield _sample(len(MIXED), 264, _sparse, MIXED)
    yield _sample(len(MIXED), 256, _equal, MIXED)
    yield _sample(8, 5000, _peaked, MIXED[:8])
    yield _sample(3, 5000, _tied, (_Options(top_k=300), _Options(top_p=0.6), _Options(top_k=4500)))
    yield _sample(2, 4600, _equal, (_Options(top_k=4200), _Options(min_p=0.5)))
    yield _sample(3, 4097, _sparse, (_Options(top_p=0.5), _Options(top_k=20), _Options()))
    # Many draws from one row: what a filter keeps shows in who is drawn.
    for options in (_Options(top_k=3), _Options(top_p=0.7), _Options(min_p=0.2), _Options(5.0)):
        yield _sample(24, 40, _random, (options,), is_one_row=True)
        yield _sample(24, 40, _tied, (options,), is_one_row=True)
    for options in (_Options(top_k=3), _Options(top_p=0.3), _Options(top_p=0.5)):
        yield _sample(24, 64, _equal, (options,))
    yield _sample(4, 100, _equal, (GREEDY,))
    yield _sample(4, 100, _random, MIXED, pad=28)
    yield _sample(1, 100, _random, (_Options(top_p=0.9),))
    yield _sample(0, 100, _random, (_Options(),))


def benches() -> Iterator[Case]:
    """DeepSeek-V3's vocabulary, each request with the same filters."""
    for options in (GREEDY, _Options(), _Options(top_k=50), _Options(top_p=0.9), MIXED[5]):
        yield _sample(32, 129280, _peaked, (options,))


def _sample(
    num_rows: int,
    vocab: int,
    values: _Values,
    options: tuple[_Options, ...],  # of the rows, in turns
    is_one_row: bool = False,
    pad: int = 0,
) -> Case:
    def make(device: torch.device) -> Inputs:
        logits = values((1 if is_one_row else num_rows, vocab + pad), device)[:, pad:]
        mine = [options[row % len(options)] for row in range(num_rows)]

        def column(what: list[float] | list[int], dtype: torch.dtype) -> Tensor:
            return torch.tensor(what, dtype=dtype).to(device)

        seeds = [0, -1, 2**63 - 1, -(2**63), 12345]
        return {
            "logits": logits.expand(num_rows, vocab),
            "temperature": column([one.temperature for one in mine], torch.float32),
            "top_k": column([one.top_k for one in mine], torch.int64),
            "top_p": column([one.top_p for one in mine], torch.float32),
            "min_p": column([one.min_p for one in mine], torch.float32),
            "seeds": column([seeds[row % 5] for row in range(num_rows)], torch.int64),
            "positions": column([row * 2**40 // 7 for row in range(num_rows)], torch.int64),
        }

    def call(kernels: Kernels, inputs: Inputs) -> tuple[Tensor, ...]:
        return (kernels.sample(**inputs),)

    name = f"fp32-{num_rows}x{vocab}-{values.__name__[1:]}"
    name += f"-{options[0].name}" if len(options) == 1 else f"-mixed{len(options)}"
    name += ("-one_row" if is_one_row else "") + (f"-strided{pad}" if pad else "")
    cost = Cost(num_rows * (4 * vocab + 48), 10 * num_rows * vocab)
    return Case("sample", name, torch.float32, make, call, ATOL, cost=cost)
