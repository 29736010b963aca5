"""Norms, rotary embedding and SwiGLU's gate against their references."""

import pytest
import torch

from dstune.kernels.select import Kernels

DTYPES = [torch.float32, torch.bfloat16]
LIMIT = {torch.float32: 1e-5, torch.bfloat16: 2**-7}  # relative; bf16 has 8 bits


def _close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    limit = LIMIT[expected.dtype]
    torch.testing.assert_close(actual, expected, rtol=limit, atol=limit / 4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [1, 16, 33, 576])
@pytest.mark.parametrize("tokens", [0, 1, 7, 80])
def test_norms(cpu: Kernels, reference: Kernels, tokens: int, dim: int, dtype: torch.dtype) -> None:
    x, residual = torch.randn(tokens, dim + 3).to(dtype)[:, :dim], torch.randn(tokens, dim)
    residual, weight = residual.to(dtype), torch.randn(dim).to(dtype)
    _close(cpu.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
    normed, total = cpu.add_rms_norm(x, residual, weight, 1e-5)
    expected_normed, expected_total = reference.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, expected_total)
    _close(normed, expected_normed)


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "pairs"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [2, 16, 24, 64, 80])
def test_rope_on_a_view_of_a_fused_projection(
    cpu: Kernels, reference: Kernels, dim: int, dtype: torch.dtype, interleaved: bool
) -> None:
    angles = torch.randn(50, dim // 2)
    for tokens in (0, 1, 70):
        fused = torch.randn(tokens, 5 * dim + 7).to(dtype)
        ours, theirs = fused.clone(), fused.clone()
        positions = torch.randint(0, 50, (tokens,))
        for backend, tensor in ((cpu, ours), (reference, theirs)):
            view = tensor[:, 3 : 3 + 4 * dim].unflatten(1, (4, dim))
            backend.apply_rope(view, positions, angles.cos(), angles.sin(), interleaved)
        _close(ours, theirs)
        untouched = [*range(3), *range(3 + 4 * dim, fused.shape[1])]
        assert torch.equal(ours[:, untouched], fused[:, untouched])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("features", [1, 16, 50, 1536])
def test_silu_and_mul(cpu: Kernels, reference: Kernels, features: int, dtype: torch.dtype) -> None:
    for tokens in (0, 1, 9):
        gate_up = (torch.randn(tokens, 2 * features) * 4).to(dtype)
        _close(cpu.silu_and_mul(gate_up), reference.silu_and_mul(gate_up))
    extremes = torch.tensor([[-200.0, 200.0, 0.0, -87.5, 1.0, 1.0, 1.0, 1.0]]).to(dtype)
    _close(cpu.silu_and_mul(extremes), reference.silu_and_mul(extremes))
