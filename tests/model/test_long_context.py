"""DeepSeek's long contexts are expanded in spans and merged: logits must be those of one span."""

from pathlib import Path
from typing import Any

import pytest
import torch
from models import save_tiny
from paged import Paged
from torch import Tensor

from dstune.kernels.select import select
from dstune.model import deepseek
from dstune.model.loading.open import open_checkpoint
from dstune.model.model import Model, build_model
from dstune.model.precision import resolve_precision

CPU = torch.device("cpu")
PROMPTS = {"a": 90, "b": 50}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("deepseek")
    save_tiny("deepseek-v3", made)
    return made


@pytest.fixture(params=["reference", "cpu"])
def model(folder: Path, request: pytest.FixtureRequest) -> Model[Any]:
    checkpoint = open_checkpoint(str(folder))
    kernels = select(request.param, CPU)
    precision = resolve_precision("fp32", CPU, kernels)
    return build_model(checkpoint.shape, checkpoint.weights, kernels, precision)


def _logits(model: Model[Any], chunk: int) -> Tensor:
    """Both prompts in chunks side by side, logits of every token."""
    generator = torch.Generator().manual_seed(1)
    ids = {
        name: torch.randint(0, 300, (length,), generator=generator).tolist()
        for name, length in PROMPTS.items()
    }
    paged = Paged(model, 8)
    found = []
    for at in range(0, max(PROMPTS.values()), chunk):
        step = {name: tokens[at : at + chunk] for name, tokens in ids.items() if at < len(tokens)}
        found += paged.step(step).values()
    return torch.cat(found)


@pytest.mark.parametrize("chunk", [9, 40, 90])  # 9 is the shortest that is expanded
def test_spans_merge_to_the_whole(
    model: Model[Any], monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    whole = _logits(model, chunk)
    merges = []
    merge = deepseek.merge_attention

    def counted(*parts: Tensor) -> tuple[Tensor, Tensor]:
        merges.append(parts)
        return merge(*parts)

    monkeypatch.setattr(deepseek, "EXPANDED_MAX_KEYS", 16)
    monkeypatch.setattr(deepseek, "merge_attention", counted)
    in_spans = _logits(model, chunk)
    assert len(merges) >= 2 * 5  # layers, spans of the longer prompt
    torch.testing.assert_close(in_spans, whole, atol=1e-5, rtol=1e-5)  # another order of sums
