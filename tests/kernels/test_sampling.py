"""Sampling: the same draws as the reference, what the filters mean, and the distribution."""

import pytest
import torch
from torch import Tensor

from dstune.kernels.sampling.reference import gumbel
from dstune.kernels.select import Kernels


def _draw(
    backend: Kernels,
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seeds: Tensor | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    batch = len(logits)
    return backend.sample(
        logits,
        torch.full((batch,), temperature),
        torch.full((batch,), top_k),
        torch.full((batch,), top_p),
        torch.full((batch,), min_p),
        torch.zeros(batch, dtype=torch.int64) if seeds is None else seeds,
        torch.arange(batch) if positions is None else positions,
    )


@pytest.mark.parametrize("vocab", [1, 17, 264, 1000, 20000])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.0},
        {"temperature": 0.7, "top_k": 5},
        {"top_k": 900},
        {"top_p": 0.9},
        {"temperature": 3.0, "top_p": 0.999},
        {"min_p": 0.1},
        {"temperature": 1.3, "top_k": 40, "top_p": 0.8, "min_p": 0.01},
    ],
    ids=lambda o: "-".join(f"{k}={v}" for k, v in o.items()) or "plain",
)
def test_draws_what_the_reference_draws(
    cpu: Kernels, reference: Kernels, vocab: int, options: dict[str, float]
) -> None:
    logits = torch.randn(6, vocab) * 3
    seeds = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), 12345])
    arguments = {**options, "seeds": seeds, "positions": torch.tensor([0, 1, 5, 9, 2**40, 3])}
    ours = _draw(cpu, logits, **arguments)  # type: ignore[arg-type]
    assert torch.equal(ours, _draw(reference, logits, **arguments))  # type: ignore[arg-type]


def test_a_draw_does_not_depend_on_row_or_batch(cpu: Kernels) -> None:
    logits = torch.randn(1, 5000).repeat(9, 1)
    seeds, positions = torch.arange(9) + 40, torch.arange(9) * 3
    for options in ({}, {"top_p": 0.9}, {"top_k": 20}):
        together = _draw(cpu, logits, seeds=seeds, positions=positions, **options)
        order = torch.randperm(9)
        shuffled = _draw(cpu, logits, seeds=seeds[order], positions=positions[order], **options)
        assert torch.equal(shuffled, together[order])
        alone = _draw(cpu, logits[:1], seeds=seeds[4:5], positions=positions[4:5], **options)
        assert alone == together[4]


@pytest.mark.parametrize("varied", ["positions", "seeds"])
def test_the_distribution_is_the_softmax(cpu: Kernels, varied: str) -> None:
    """Chi-square over 20000 fixed draws; 32.0 is exceeded once in 24,000 by chance (7 degrees)."""
    draws = 20000
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, 0.5, -0.5, 1.5, -2.0])
    fixed, moving = torch.full((draws,), 3), torch.arange(draws)
    seeds, positions = (fixed, moving) if varied == "positions" else (moving, fixed)
    tokens = _draw(cpu, logits.repeat(draws, 1), 1.5, seeds=seeds, positions=positions)
    expected = (logits / 1.5).softmax(-1) * draws
    observed = torch.bincount(tokens, minlength=8)
    assert float(((observed - expected) ** 2 / expected).sum()) < 32.0


def test_what_the_filters_keep(cpu: Kernels) -> None:
    draws = 4000
    shares = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05])
    logits = shares.log().repeat(draws, 1)

    def kept(**options: float) -> set[int]:
        return set(_draw(cpu, logits, **options).tolist())  # type: ignore[arg-type]

    assert kept() == {0, 1, 2, 3, 4}
    assert kept(top_k=2) == {0, 1}
    assert kept(top_p=0.65) == {0, 1}  # 0.4 does not reach it, 0.7 does
    assert kept(top_p=0.75) == {0, 1, 2}
    assert kept(top_p=1e-9) == {0}
    assert kept(min_p=0.3) == {0, 1, 2}  # 0.15 >= 0.3 * 0.4
    assert kept(top_k=3, top_p=0.8) == {0, 1}  # 0.7 / 0.85 of what top_k left
    assert kept(temperature=0.0) == {0}


def test_ties_go_to_the_lowest_id(cpu: Kernels, reference: Kernels) -> None:
    logits = torch.zeros(3, 50)
    logits[1, 33], logits[1, 47] = 5, 5
    logits[2, 16:] = 1
    for backend in (cpu, reference):
        assert _draw(backend, logits, temperature=0.0).tolist() == [0, 33, 16]
        assert set(_draw(backend, torch.zeros(300, 50), top_k=2).tolist()) == {0, 1}


def test_noise_is_finite_and_differs_between_neighbours() -> None:
    ids = torch.arange(100000)
    noise = gumbel(1, 2, ids)
    assert bool(noise.isfinite().all())
    assert abs(float(noise.mean()) - 0.5772) < 0.02  # Euler's constant; the deviation is 0.004
    assert not torch.equal(noise, gumbel(1, 3, ids))
    assert not torch.equal(noise, gumbel(2, 2, ids))


def test_no_rows(cpu: Kernels) -> None:
    assert _draw(cpu, torch.zeros(0, 10)).shape == (0,)
