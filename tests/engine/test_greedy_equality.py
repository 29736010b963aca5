"""Greedy output of SmolLM2 equals that of `transformers` in fp32, whatever the engine does.

The fixed prompt runs alone and inside a batch of 16 mixed requests, over block sizes, chunk
budgets, forced preemption and prefix hits; 64 tokens, token for token.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dstune.engine.config import EngineConfig
from dstune.engine.engine import Engine
from dstune.engine.request import Request, SamplingParams
from dstune.model.loading.open import Checkpoint, open_checkpoint

PROMPT = "The three most important ideas in the history of astronomy are"
LENGTH = 64


@pytest.fixture(scope="module")
def checkpoint(smollm2_gguf: Path) -> Checkpoint:
    return open_checkpoint(str(smollm2_gguf))


@pytest.fixture(scope="module")
def prompt(checkpoint: Checkpoint) -> tuple[int, ...]:
    assert checkpoint.tokenizer is not None
    return tuple(checkpoint.tokenizer.encode(PROMPT))


@pytest.fixture(scope="module")
def expected(smollm2_gguf: Path, prompt: tuple[int, ...]) -> list[int]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        smollm2_gguf.parent, gguf_file=smollm2_gguf.name, dtype=torch.float32
    )
    model.generation_config.eos_token_id = None  # 64 tokens, whatever they are
    ids = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=LENGTH)
    return ids[0, len(prompt) :].tolist()


@pytest.fixture(scope="module")
def engine(checkpoint: Checkpoint) -> Engine:
    return Engine(checkpoint, config())


def config(**knobs: object) -> EngineConfig:
    return EngineConfig.from_knobs(
        {
            "precision": "fp32",
            "max_model_len": 512,
            "max_num_seqs": 16,
            "kv_cache_memory_bytes": 256 << 20,
            **knobs,
        }
    )


def ask(engine: Engine, name: str, ids: tuple[int, ...], length: int = LENGTH) -> Request:
    return engine.add(name, ids, SamplingParams(max_tokens=length, ignore_eos=True))


def others(prompt: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Fifteen prompts of 3 to 250 tokens; some share the fixed prompt's beginning."""
    generator = torch.Generator().manual_seed(5)
    mixed = []
    for index in range(15):
        length = [3, 17, 33, 64, 100, 250][index % 6]
        ids = tuple(torch.randint(20, 49000, (length,), generator=generator).tolist())
        mixed.append(prompt[:8] + ids if index % 4 == 0 else ids)
    return mixed


def drain(engine: Engine) -> int:
    """Steps until idle; returns the number of preemptions. Every block is free afterwards."""
    preempted = 0
    while engine.has_requests:
        step = engine.step()
        preempted += step.num_preempted if step else 0
    assert engine.scheduler.blocks.num_free == engine.size.num_blocks
    return preempted


def output(request: Request) -> list[int]:
    return request.token_ids[len(request.prompt_token_ids) :]


def in_a_mixed_batch(engine: Engine, prompt: tuple[int, ...], length: int = LENGTH) -> Request:
    """The fixed prompt arrives between others that come and go."""
    for index, ids in enumerate(others(prompt)):
        if index == 7:
            fixed = ask(engine, "fixed", prompt, length)
        ask(engine, f"other-{index}", ids, length=8 + 5 * index)
        engine.step()
    return fixed


def test_alone(engine: Engine, prompt: tuple[int, ...], expected: list[int]) -> None:
    engine.reconfigure(config())
    request = ask(engine, "alone", prompt)
    drain(engine)
    assert output(request) == expected


@pytest.mark.parametrize("block_size", [8, 16, 32, 64, 128])
def test_block_sizes(
    engine: Engine, prompt: tuple[int, ...], expected: list[int], block_size: int
) -> None:
    engine.reconfigure(config(block_size=block_size))
    request = in_a_mixed_batch(engine, prompt)
    drain(engine)
    assert output(request) == expected


@pytest.mark.parametrize("budget", [16, 48, 256, 2048])
def test_chunk_budgets(
    engine: Engine, prompt: tuple[int, ...], expected: list[int], budget: int
) -> None:
    engine.reconfigure(config(max_num_batched_tokens=budget))
    request = in_a_mixed_batch(engine, prompt)
    drain(engine)
    assert output(request) == expected


@pytest.mark.parametrize("has_cache", [True, False], ids=["prefix-cache", "no-prefix-cache"])
def test_forced_preemption(
    engine: Engine, prompt: tuple[int, ...], expected: list[int], has_cache: bool
) -> None:
    per_token = engine.checkpoint.shape.kv_bytes_per_token("fp32")
    engine.reconfigure(
        config(
            kv_cache_memory_bytes=per_token * 16 * 24,
            max_model_len=384,
            enable_prefix_caching=has_cache,
        )
    )
    early = ask(engine, "early", prompt)
    for index, ids in enumerate(others(prompt)):
        ask(engine, f"other-{index}", ids[:60], length=40)
    late = ask(engine, "late", (*prompt[:-1], prompt[-1]))
    assert drain(engine) > 0
    assert output(early) == expected
    assert output(late) == expected


def test_prefix_hits(engine: Engine, prompt: tuple[int, ...], expected: list[int]) -> None:
    engine.reconfigure(config(block_size=8))
    ask(engine, "first", prompt)
    drain(engine)
    second = ask(engine, "second", prompt)
    drain(engine)
    assert second.num_cached_tokens == 8 * ((len(prompt) - 1) // 8) > 0
    assert output(second) == expected
    continued = ask(engine, "continued", prompt + tuple(expected[:32]), LENGTH - 32)
    drain(engine)
    assert continued.num_cached_tokens > len(prompt), "blocks of generated tokens are shared too"
    assert output(continued) == expected[32:]


def test_live_change_between_steps(
    engine: Engine, prompt: tuple[int, ...], expected: list[int]
) -> None:
    engine.reconfigure(config())
    request = in_a_mixed_batch(engine, prompt)
    engine.reconfigure(config(max_num_seqs=2, max_num_batched_tokens=32))
    for _ in range(5):
        engine.step()
    engine.reconfigure(config(max_num_seqs=16, batch_timeout_ms=5.0))
    drain(engine)
    assert output(request) == expected


def test_reference_backend(
    checkpoint: Checkpoint, prompt: tuple[int, ...], expected: list[int]
) -> None:
    engine = Engine(checkpoint, config(backend="reference"))
    request = ask(engine, "reference", prompt)
    drain(engine)
    assert output(request) == expected
