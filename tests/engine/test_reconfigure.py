"""A configuration that cannot be leaves the earlier one in force, whatever it would have cost."""

from __future__ import annotations

from pathlib import Path

import pytest
from models import save_tiny

from dstune.engine.config import EngineConfig
from dstune.engine.engine import Engine
from dstune.engine.request import SamplingParams
from dstune.errors import DstuneError
from dstune.model.loading.open import open_checkpoint

POSSIBLE: dict[str, object] = {
    "precision": "fp32", "max_model_len": 64, "kv_cache_memory_bytes": 1 << 20,
}  # fmt: skip


def generate(engine: Engine) -> list[int]:
    request = engine.add("one", (5, 6, 7), SamplingParams(max_tokens=6, ignore_eos=True))
    while engine.has_requests:
        engine.step()
    return request.token_ids


@pytest.mark.parametrize(
    "changed",
    [
        {"max_model_len": 10_000},  # a rebuild that fails
        {"precision": "bf16", "max_model_len": 10_000},  # a reload that fails behind the model
        {"precision": "fp8"},  # a reload that is refused before anything is let go
        {"backend": "triton", "kv_cache_dtype": "int8", "kv_cache_memory_bytes": 100},
        {"max_num_batched_tokens": 16, "enable_chunked_prefill": False},  # a live change
    ],
    ids=["rebuild", "reload", "precision", "backend", "live"],
)
def test_refused_and_still_serving(tmp_path: Path, changed: dict[str, object]) -> None:
    save_tiny("llama", tmp_path)
    engine = Engine(open_checkpoint(str(tmp_path)), EngineConfig.from_knobs(POSSIBLE))
    before, knobs = generate(engine), engine.effective_knobs()
    for _ in range(2):
        with pytest.raises(DstuneError):
            engine.reconfigure(EngineConfig.from_knobs(POSSIBLE | changed))
        assert engine.effective_knobs() == knobs
        assert generate(engine) == before
    engine.reconfigure(EngineConfig.from_knobs(POSSIBLE | {"block_size": 32}))
    assert generate(engine) == before
