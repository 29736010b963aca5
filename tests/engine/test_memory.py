"""The step that sizes a GPU's KV cache, computed here on the backends that a CPU has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from models import save_tiny

from dstune.engine.config import EngineConfig
from dstune.engine.engine import Engine
from dstune.engine.memory import run_largest_step
from dstune.kernels.batch import AttentionBatch
from dstune.model.loading.open import open_checkpoint


@pytest.mark.parametrize("backend", ["cpu", "triton"])
@pytest.mark.parametrize("kind", ["llama", "deepseek-v3"])
def test_the_largest_step(
    tmp_path: Path, kind: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every token of the budget is computed, over as many sequences as they fill."""
    save_tiny(kind, tmp_path)
    config = EngineConfig.from_knobs({
        "backend": backend, "precision": "fp32", "max_model_len": 24, "max_num_seqs": 3,
        "max_num_batched_tokens": 60, "block_size": 8, "kv_cache_memory_bytes": 1 << 20,
    })  # fmt: skip
    engine = Engine(open_checkpoint(str(tmp_path)), config)
    seen: list[tuple[AttentionBatch, int]] = []
    plain = engine._model.forward

    def forward(ids: torch.Tensor, batch: AttentionBatch, cache: list[object],
                rows: torch.Tensor) -> torch.Tensor:  # fmt: skip
        logits = plain(ids, batch, cache, rows)
        seen.append((batch, len(logits)))
        assert logits.isfinite().all()
        for layer in cache:
            stored = [one for one in vars(layer).values() if one is not None]
            assert not any(one.float().any() for one in stored), "a measuring step stores nothing"
        return logits

    monkeypatch.setattr(engine._model, "forward", forward)
    run_largest_step(config, engine._model, engine._kernels)
    ((batch, num_rows),) = seen
    assert batch.host_query_lens == (24, 24, 12)
    assert num_rows == 3
