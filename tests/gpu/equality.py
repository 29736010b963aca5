"""The engine's answers on a device against `transformers` on the CPU, and against itself."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from models import save_tiny

from dstune.engine.config import EngineConfig
from dstune.engine.engine import Engine
from dstune.engine.request import SamplingParams
from dstune.kv.validate import check_quality, plan_variants
from dstune.load.corpus import corpus_text
from dstune.model.loading.open import open_checkpoint

KINDS = ("llama", "deepseek-v2", "deepseek-v3")
PROMPT_LENGTHS = (3, 17, 40, 64)
LENGTH = 24


def greedy_differences(device: torch.device, backend: str) -> list[str]:
    """Which toys' greedy text differs from that of `transformers`, with graphs or without."""
    found = []
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            reference = save_tiny(kind, Path(folder))
            reference.generation_config.eos_token_id = None
            prompts = [_prompt(length) for length in PROMPT_LENGTHS]
            expected = [_greedy(reference, prompt) for prompt in prompts]
            for is_eager in (False, True):
                config = EngineConfig.from_knobs({
                    "backend": backend, "precision": "fp32", "max_model_len": 128,
                    "max_num_seqs": 4, "max_num_batched_tokens": 48,
                    "kv_cache_memory_bytes": 16 << 20, "enforce_eager": is_eager,
                })  # fmt: skip
                engine = Engine(open_checkpoint(folder), config, device)
                for prompt, wanted, got in zip(
                    prompts, expected, generate(engine, prompts), strict=True
                ):
                    if got != wanted:
                        how = "eager" if is_eager else "graphs"
                        found.append(f"{kind} {how} prompt {len(prompt)}: {got} for {wanted}")
    return found


def _prompt(length: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(length)
    return tuple(torch.randint(0, 300, (length,), generator=generator).tolist())


def _greedy(reference: Any, prompt: tuple[int, ...]) -> list[int]:
    ids = torch.tensor([prompt])
    ids = reference.generate(
        ids,
        attention_mask=torch.ones_like(ids),  # else token 0 counts as padding
        do_sample=False,
        max_new_tokens=LENGTH,
        pad_token_id=0,
    )
    return list(ids[0, len(prompt) :].tolist())


def generate(engine: Engine, prompts: list[tuple[int, ...]], length: int = LENGTH) -> list[Any]:
    """Greedy continuations of all prompts together."""
    params = SamplingParams(max_tokens=length, ignore_eos=True)
    requests = [engine.add(str(row), prompt, params) for row, prompt in enumerate(prompts)]
    while engine.has_requests:
        engine.step()
    return [one.token_ids[len(one.prompt_token_ids) :] for one in requests]


def precision_costs(backend: str, num_windows: int = 4) -> list[dict[str, Any]]:
    """The bundled model's perplexity under each precision and KV type that the device has."""
    precisions = ["fp32", "bf16", "int8"]
    kv_dtypes = ["auto", "int8"]
    if backend == "triton":
        precisions.append("int8_weight_only")
        if torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9):
            precisions.append("fp8")
            kv_dtypes.append("fp8")
    variants = plan_variants(precisions, kv_dtypes)
    found = check_quality("tiny-deepseek", variants, corpus_text(), num_windows, backend=backend)
    return [one.as_row() for one in found]
