"""The engine on its Triton kernels, under the interpreter: the wiring that a GPU runs.

Two-layer toys, greedy, against `transformers` in fp32; decode steps run through padded buffers as
under CUDA graphs, with the computation itself in the place of the captured one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from models import save_tiny

from dstune.engine.config import EngineConfig
from dstune.engine.engine import Engine
from dstune.engine.graphs import DecodeGraphs, Forward, graph_sizes
from dstune.engine.request import Request, SamplingParams
from dstune.engine.runner import Runner
from dstune.model.loading.open import open_checkpoint

LENGTH = 5
KINDS = ["llama", "deepseek-v2", "deepseek-v3"]


class Toy:
    """A random model on disk, and what `transformers` says of it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.folder = folder
        self._reference = save_tiny(kind, folder)
        self._reference.generation_config.eos_token_id = None

    def expected(self, prompt: tuple[int, ...]) -> list[int]:
        """Greedy continuation."""
        ids = torch.tensor([prompt])
        ids = self._reference.generate(
            ids,
            attention_mask=torch.ones_like(ids),  # else token 0 counts as padding
            do_sample=False,
            max_new_tokens=LENGTH,
            pad_token_id=0,
        )
        return ids[0, len(prompt) :].tolist()

    def engine(self, **knobs: object) -> Engine:
        """An engine over it."""
        values: dict[str, object] = {
            "backend": "triton",
            "precision": "fp32",
            "max_model_len": 96,
            "max_num_seqs": 4,
            "kv_cache_memory_bytes": 4 << 20,
        }
        return Engine(open_checkpoint(str(self.folder)), EngineConfig.from_knobs(values | knobs))


@pytest.fixture(scope="module", params=KINDS)
def toy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return Toy(request.param, tmp_path_factory.mktemp(request.param))


def prompt_of(length: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, 300, (length,), generator=generator).tolist())


def ask(engine: Engine, name: str, prompt: tuple[int, ...]) -> Request:
    return engine.add(name, prompt, SamplingParams(max_tokens=LENGTH, ignore_eos=True))


def drain(engine: Engine) -> None:
    while engine.has_requests:
        engine.step()


def output(request: Request) -> list[int]:
    return request.token_ids[len(request.prompt_token_ids) :]


def generate(engine: Engine, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    requests = [ask(engine, str(index), prompt) for index, prompt in enumerate(prompts)]
    drain(engine)
    return [output(request) for request in requests]


def test_prefill_and_decode(toy: Toy) -> None:
    prompt = prompt_of(21, seed=1)
    engine = toy.engine()
    assert engine.backend == "triton"
    assert generate(engine, [prompt]) == [toy.expected(prompt)]


def test_chunked_prefill(toy: Toy) -> None:
    prompt = prompt_of(40, seed=2)
    assert generate(toy.engine(max_num_batched_tokens=16), [prompt]) == [toy.expected(prompt)]


def test_mixed_batch(toy: Toy) -> None:
    """Decodes beside a fresh prompt and a prefix hit; several block sizes meet odd lengths."""
    engine = toy.engine(block_size=8)
    first, second = prompt_of(9, seed=3), prompt_of(26, seed=4)
    third = first + prompt_of(7, seed=5)
    one = ask(engine, "one", first)
    engine.step()
    two = ask(engine, "two", second)
    engine.step()
    three = ask(engine, "three", third)
    drain(engine)
    assert three.num_cached_tokens == 8
    for request, prompt in ((one, first), (two, second), (three, third)):
        assert output(request) == toy.expected(prompt)


@pytest.mark.parametrize("kv_cache_dtype", ["int8", "fp16"])
def test_small_kv_equals_the_reference_backend(toy: Toy, kv_cache_dtype: str) -> None:
    prompts = [prompt_of(18, seed=6), prompt_of(5, seed=7)]
    ours, theirs = (
        generate(toy.engine(kv_cache_dtype=kv_cache_dtype, backend=backend), prompts)
        for backend in ("triton", "reference")
    )
    assert ours == theirs


def test_seeded_sampling_equals_the_reference_backend(toy: Toy) -> None:
    def sampled(backend: str) -> list[int]:
        engine = toy.engine(backend=backend)
        params = SamplingParams(
            max_tokens=LENGTH, ignore_eos=True, temperature=0.9, top_k=40, top_p=0.9, seed=11
        )
        request = engine.add("sampled", prompt_of(12, seed=8), params)
        drain(engine)
        return output(request)

    assert sampled("triton") == sampled("reference")


class EagerCapture:
    """Stands in for CUDA graphs: repeats the computation, and counts the repeats by size."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.num_replays = 0

    def __call__(self, forward: Forward) -> Forward:
        self.sizes.append(len(forward()))

        def replay() -> torch.Tensor:
            self.num_replays += 1
            return forward()

        return replay


def with_graphs(engine: Engine, max_num_seqs: int) -> tuple[Any, EagerCapture]:
    """Give an engine decode buffers as on a GPU."""
    capture = EagerCapture()
    runner = Runner(engine._model, engine._kernels, engine.size, capture)
    runner.prepare(max_num_seqs)
    engine._runner = runner
    return runner, capture


def test_decode_through_padded_buffers(toy: Toy) -> None:
    """Three sequences in buffers of four; the padding changes nothing and writes nothing."""
    engine = toy.engine(block_size=16)
    _, capture = with_graphs(engine, 4)
    assert capture.sizes == [4, 2, 1], "the largest first, so that the others fit its memory"
    prompts = [prompt_of(length, seed=20 + length) for length in (4, 16, 17)]
    assert generate(engine, prompts) == [toy.expected(prompt) for prompt in prompts]
    assert capture.num_replays == LENGTH - 1, "every step but the prefill"


def test_padding_writes_nothing(toy: Toy) -> None:
    engine = toy.engine()
    runner, _ = with_graphs(engine, 4)
    generate(engine, [prompt_of(6, seed=30)])
    for layer in runner._cache:
        for tensor in vars(layer).values():
            if tensor is None:
                continue
            written = tensor.flatten(1).float().abs().sum(1).nonzero().flatten().tolist()
            assert len(written) == 1, f"one block holds the 11 tokens, {written} were written"


def test_graph_sizes() -> None:
    for most in (1, 2, 3, 8, 33, 100, 256):
        sizes = graph_sizes(most)
        assert sizes[-1] == most and sizes == sorted(set(sizes))
        for count in range(1, most + 1):
            size = min(size for size in sizes if size >= count)
            assert size < 2 * count or size <= 2


def test_growing_captures_again(toy: Toy) -> None:
    engine = toy.engine()
    capture = EagerCapture()
    graphs = DecodeGraphs(engine._model, engine._runner._cache, 96, 16, capture)
    with torch.inference_mode():
        graphs.prepare(1)
        graphs.prepare(2)
        graphs.prepare(1)
    assert capture.sizes == [1, 2, 1]
