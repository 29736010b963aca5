"""Expert gates and routed experts against their references."""

import pytest
import torch

from dstune.errors import UsageError
from dstune.kernels.select import Kernels


@pytest.mark.parametrize(
    "experts,top_k,n_group,topk_group",
    [(8, 2, 1, 1), (64, 6, 1, 1), (256, 8, 8, 4), (16, 1, 4, 2), (4, 4, 4, 3)],
    ids=lambda n: str(n),
)
@pytest.mark.parametrize("normalise", [False, True], ids=["plain", "normalised"])
def test_gates(
    cpu: Kernels,
    reference: Kernels,
    experts: int,
    top_k: int,
    n_group: int,
    topk_group: int,
    normalise: bool,
) -> None:
    for tokens in (0, 1, 50):
        # Multiples of 1/64: scores are either equal, or apart by more than rounding.
        logits = torch.randint(-200, 200, (tokens, experts)) / 64
        bias = torch.randint(-64, 64, (experts,)) / 7
        for ours, theirs in (
            (b.gate_softmax(logits, top_k, 1.5, normalise, n_group, topk_group)
             for b in (cpu, reference)),
            (b.gate_sigmoid(logits, bias, top_k, n_group, topk_group, 2.5, normalise)
             for b in (cpu, reference)),
        ):  # fmt: skip
            assert torch.equal(ours[1], theirs[1])
            torch.testing.assert_close(ours[0], theirs[0])


def test_sigmoid_gate_by_hand(cpu: Kernels) -> None:
    """The bias decides who is chosen; the weights come from the scores without it."""
    logits = torch.tensor([[0.0, 2.0, -1.0, 1.0]])
    bias = torch.tensor([5.0, 0.0, 5.0, 0.0])
    weights, ids = cpu.gate_sigmoid(logits, bias, 2, 1, 1, 2.5, True)
    assert ids.tolist() == [[0, 2]]
    scores = logits.sigmoid()[0, [0, 2]]
    torch.testing.assert_close(weights[0], scores / scores.sum() * 2.5)


def test_equal_scores_go_to_the_lowest_expert(cpu: Kernels) -> None:
    _, ids = cpu.gate_softmax(torch.zeros(1, 6), 3, 1.0, False)
    assert ids.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "hidden,features,experts,top_k",
    [(64, 64, 8, 2), (70, 34, 5, 3), (48, 20, 1, 1)],
    ids=lambda n: str(n),
)
def test_experts(
    cpu: Kernels,
    reference: Kernels,
    hidden: int,
    features: int,
    experts: int,
    top_k: int,
    dtype: torch.dtype,
    precision: str,
) -> None:
    gate_up = [torch.randn(2 * features, hidden) / hidden**0.5 for _ in range(experts)]
    down = [torch.randn(hidden, features) / features**0.5 for _ in range(experts)]
    ours, theirs = (b.pack_experts(gate_up, down, precision, dtype) for b in (cpu, reference))
    # int8: the second quantisation may round a value the other way, one step of 127.
    limit = {"fp32": 1e-5, "bf16": 2e-2, "int8": 1e-2}[precision]
    for tokens in (0, 1, 40):
        x = torch.randn(tokens, hidden).to(dtype)
        weights, ids = reference.gate_softmax(torch.randn(tokens, experts), top_k, 1.0, True)
        y, expected = ours(x, weights, ids), theirs(x, weights, ids)
        limit = max(limit, 2e-2 if dtype == torch.bfloat16 else 0)
        torch.testing.assert_close(y, expected, rtol=limit, atol=2 * limit)
        for row in range(0, tokens, 13):
            alone = ours(x[row : row + 1], weights[row : row + 1], ids[row : row + 1])
            assert torch.equal(alone[0], y[row])


def test_mismatched_experts_are_refused(cpu: Kernels) -> None:
    with pytest.raises(UsageError, match="do not match"):
        cpu.pack_experts(
            [torch.randn(8, 4), torch.randn(8, 4)],
            [torch.randn(4, 4), torch.randn(4, 5)],
            "fp32",
            torch.float32,
        )
