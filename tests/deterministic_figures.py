"""Figures of dstune that are the same on every machine, as a document for `dstune gate`.

    python tests/deterministic_figures.py > figures.json

Kernels per step, compiled registers and spills, KV bytes per token, tokens per step of a scripted
scheduler: what a change moves without anybody timing it. Needs no GPU; the GPUs are pretended.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dstune.architecture import ELEMENT_BYTES, PUBLISHED, SCALED, ModelShape, published_shape
from dstune.engine.blocks import BlockManager
from dstune.engine.config import EngineConfig
from dstune.engine.engine import Engine
from dstune.engine.request import Request, SamplingParams
from dstune.engine.scheduler import Scheduler
from dstune.kernels import native
from dstune.kernels.batch import AttentionBatch
from dstune.kernels.device import SM_80, SM_90
from dstune.kernels.launch import recording
from dstune.kernels.precision import FLOAT_PRECISIONS, KV_DTYPES
from dstune.kernels.select import select
from dstune.kernels.workbench import catalogue
from dstune.kernels.workbench.compile import Compiled, compile_cases
from dstune.measure.exact_figures import ExactFigures
from dstune.model.loading.open import open_checkpoint
from dstune.model.loading.weights import expected_tensors
from dstune.model.model import Model, build_model
from dstune.model.precision import Precision

META = torch.device("meta")
Counts = dict[str, int]


@dataclass(frozen=True)
class Arrival:
    """A request of the script: it comes before step `step`."""

    step: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_shared_tokens: int = 0  # of the prompt, the same in every request that shares some


@dataclass(frozen=True)
class Script:
    """A scheduler's knobs, its memory, and what arrives."""

    arrivals: tuple[Arrival, ...]
    knobs: dict[str, Any]
    num_blocks: int = 64


SCRIPTS = {
    # a prompt beyond the budget goes in chunks beside the decodes
    "chunked": Script(
        (Arrival(0, 20, 6), Arrival(1, 150, 4), Arrival(1, 30, 3), Arrival(4, 5, 3)),
        {"max_num_batched_tokens": 64, "max_num_seqs": 4},
    ),
    # without chunking it waits for a step that holds it whole
    "whole": Script(
        (Arrival(0, 40, 4), Arrival(0, 40, 4), Arrival(1, 60, 3)),
        {"max_num_batched_tokens": 64, "enable_chunked_prefill": False, "max_model_len": 64},
    ),
    # four blocks for two sequences that grow: the newer one loses its place and starts again
    "preempted": Script(
        (Arrival(0, 31, 6), Arrival(0, 30, 6)), {"enable_prefix_caching": False}, num_blocks=4
    ),
    # 64 tokens are found in the cache, the rest is computed
    "shared_prefix": Script(
        (Arrival(0, 80, 2, 64), Arrival(1, 80, 2, 64), Arrival(1, 70, 2, 64)),
        {"max_num_batched_tokens": 128},
    ),
}


def scheduler_figures() -> Counts:
    """Tokens of every step, prefix hits and preemptions of each script."""
    found: Counts = {}
    for name, script in SCRIPTS.items():
        found.update({f"scheduler.{name}.{key}": value for key, value in _played(script).items()})
    return found


def _played(script: Script) -> Counts:
    config = EngineConfig.from_knobs({"block_size": 16, **script.knobs})
    blocks = BlockManager(script.num_blocks, config.block_size, config.enable_prefix_caching)
    scheduler = Scheduler(config, blocks, script.num_blocks * config.block_size)
    found: Counts = {}
    step = cached = preempted = 0
    last = max(one.step for one in script.arrivals)
    while scheduler.has_requests or step <= last:
        for number, arrival in enumerate(script.arrivals):
            if arrival.step == step:
                scheduler.add(_request(number, arrival))
        plan = scheduler.schedule(0)
        scheduler.complete(plan, [7] * sum(one.yields_token for one in plan.scheduled))
        found[f"step{step:03d}"] = plan.num_tokens
        cached += plan.num_cached_tokens
        preempted += plan.num_preempted
        step += 1
        if step > 1000:
            raise RuntimeError("the script does not end")
    return {**found, "cached_tokens": cached, "preemptions": preempted}


def _request(number: int, arrival: Arrival) -> Request:
    own = range(1000 * (number + 1), 1000 * (number + 1) + arrival.num_prompt_tokens)
    prompt = (*range(arrival.num_shared_tokens), *own[arrival.num_shared_tokens :])
    params = SamplingParams(max_tokens=arrival.num_output_tokens)
    return Request(str(number), prompt, params, arrival_ns=0)


def kv_figures() -> Counts:
    """Bytes that a token keeps in the KV cache, of every published shape and element type."""
    return {
        f"kv_bytes_per_token.{name}.{dtype}": published_shape(name).kv_bytes_per_token(dtype)
        for name in PUBLISHED
        for dtype in ELEMENT_BYTES
    }


MODELS = (
    ("deepseek-v2-lite", "bf16", None),
    ("deepseek-v2-lite", "int8", None),
    ("deepseek-v3", "bf16", None),
    ("deepseek-v3", "fp8", 5),  # packing 58 layers of 256 experts takes a minute, even of nothing
    ("llama-3-8b", "bf16", None),
    ("llama-3-8b", "int8", None),
)
"""Published shape, precision, and how many of the layers where not all: then the name says so."""
STEPS = {
    "decode_1": ((1,), (4096,)),
    "decode_32": ((1,) * 32, (4096,) * 32),
    "prefill_1": ((2048,), (2048,)),
    "prefill_32": ((64,) * 32, (64,) * 32),
}
"""Query and KV lengths of a step's sequences."""
BLOCK_SIZE = 16
ALLOCATIONS = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")


class MetaWeights:
    """A checkpoint's tensors without storage."""

    def __init__(self, shape: ModelShape) -> None:
        self._sizes = dict(expected_tensors(shape))

    def has(self, name: str) -> bool:
        """Whether the shape has that tensor."""
        return name in self._sizes

    def take(self, name: str) -> Tensor:
        """The tensor."""
        return torch.empty(self._sizes[name], dtype=torch.bfloat16, device=META)


class Operations(TorchDispatchMode):
    """Counts torch operations that compute; views and allocations cost a GPU nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.num = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        schema = operation._schema
        aliases = [one.alias_info for one in schema.returns]
        is_view = any(one is not None and not one.is_write for one in aliases)
        name = schema.name.split("::")[1]
        if not is_view and name not in (*ALLOCATIONS, "_unsafe_view"):
            self.num += 1
        return operation(*args, **(kwargs or {}))


def launch_figures() -> Counts:
    """Triton launches by kernel and torch operations of one forward pass on an H100."""
    found: Counts = {}
    for name, precision, num_layers in MODELS:
        shape = published_shape(name)
        if num_layers is not None:
            label = f"{name}-{num_layers}-layers"
            shape = replace(shape, name=label, num_layers=num_layers)
        say(f"launches of {shape.name} in {precision}")
        found |= _launches(shape, precision)
    return found


def _launches(shape: ModelShape, precision: str) -> Counts:
    found: Counts = {}
    activations = FLOAT_PRECISIONS.get(precision, torch.bfloat16)
    with recording(SM_90) as launches, torch.inference_mode():
        kernels = select("triton", META)
        model = build_model(
            shape, MetaWeights(shape), kernels, Precision(precision, activations, META)
        )
        if precision == "bf16":
            found |= _allocated(model)
        cache = model.allocate_cache(64, BLOCK_SIZE, torch.bfloat16)
        for name, (query_lens, kv_lens) in STEPS.items():
            num_tokens = sum(query_lens)
            ids = torch.zeros(num_tokens, dtype=torch.int64, device=META)
            rows = torch.arange(len(query_lens), device=META)
            batch = _batch(query_lens, kv_lens)
            launches.clear()
            with Operations() as operations:
                model.forward(ids, batch, cache, rows)
            prefix = f"launches.{shape.name}.{precision}.{name}"
            by_kernel = Counter(one.kernel.__name__.strip("_") for one in launches)
            found.update({f"{prefix}.{kernel}": num for kernel, num in by_kernel.items()})
            found |= {f"{prefix}.all_triton": len(launches), f"{prefix}.all_torch": operations.num}
    return found


def _allocated(model: Model[Any]) -> Counts:
    """Bytes that the engine allocates for one token, beside what planning counts on."""
    found: Counts = {}
    for name in ("bf16", *SCALED):
        layers = model.allocate_cache(1, 1, KV_DTYPES[name])
        tensors = [one for layer in layers for one in vars(layer).values() if one is not None]
        found[f"kv_bytes_allocated.{model.shape.name}.{name}"] = sum(one.nbytes for one in tensors)
    return found


def _batch(query_lens: Sequence[int], kv_lens: Sequence[int]) -> AttentionBatch:
    num_tokens, num_seqs = sum(query_lens), len(query_lens)
    num_blocks = -(-max(kv_lens) // BLOCK_SIZE)
    starts = list(accumulate(query_lens, initial=0))
    return AttentionBatch(
        positions=torch.zeros(num_tokens, dtype=torch.int64, device=META),
        slot_mapping=torch.zeros(num_tokens, dtype=torch.int64, device=META),
        query_start=torch.tensor(starts, dtype=torch.int32, device=META),
        kv_lens=torch.tensor(kv_lens, dtype=torch.int32, device=META),
        block_tables=torch.zeros(num_seqs, num_blocks, dtype=torch.int32, device=META),
        block_size=BLOCK_SIZE,
        host_query_lens=tuple(query_lens),
        host_kv_lens=tuple(kv_lens),
    )


def native_figures() -> Counts:
    """Calls of native CPU functions in a decode step of the bundled model, four sequences."""
    say("native calls of tiny-deepseek")
    config = EngineConfig.from_knobs({"precision": "bf16", "backend": "cpu", "max_model_len": 64})
    engine = Engine(open_checkpoint("tiny-deepseek"), config, torch.device("cpu"), lambda: 0)
    for number in range(4):
        engine.add(str(number), tuple(range(1, 9)), SamplingParams(max_tokens=4, ignore_eos=True))
    engine.step()
    with counting_native() as calls:
        output = engine.step()
    assert output is not None and output.num_decode_tokens == 4 and not output.num_prefill_tokens
    prefix = "native_calls.tiny-deepseek.bf16.decode_4"
    return {f"{prefix}.{name}": num for name, num in calls.items()} | {
        f"{prefix}.all": calls.total()
    }


@contextmanager
def counting_native() -> Iterator[Counter[str]]:
    """Counts the calls of every native function."""
    calls: Counter[str] = Counter()
    library = native.lib()

    def counted(name: str, function: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: float) -> None:
            calls[name] += 1
            function(*arguments)

        return call

    native.use(SimpleNamespace(**{name: counted(name, one) for name, one in vars(library).items()}))
    try:
        yield calls
    finally:
        native.use(library)


COMPILED = (
    "paged_attention-decode-bf16-kv_bf16-h32_8_128-block16-32x1of4096",
    "paged_attention-decode-bf16-kv_int8-h32_8_128-block16-32x1of4096",
    "latent_attention-decode-bf16-kv_bf16-h16_512_64-block16-32x1of4096",
    "latent_attention-decode-bf16-kv_int8-h128_512_64-block16-32x1of4096",
    "paged_attention-prefill-bf16-kv_bf16-h32_8_128-block16-2048of2048",
    "dense_attention-bf16-h16_16_192_128-2048of2048-lse",
    "pack_linear-int8-m32-n4096-k4096",
    "pack_linear-int8-m2048-n4096-k4096",
    "pack_experts-bf16-v2lite-t32-beside_grouped_mm",
    "pack_experts-int8-v2lite-t2048-beside_grouped_mm",
    "add_rms_norm-bf16-residual_bf16-32x2048",
    "rotate_and_write_latent-bf16-kv_bf16-interleaved-32xh16_512_64",
)
"""Benches whose kernels a step's time hangs on."""


def compiled_figures() -> Counts:
    """What the compiler makes of those benches' kernels, for sm_80 and sm_90.

    Raises `RuntimeError` where one does not compile. A version that several benches launch stands
    under the first; versions of one kernel in one bench are numbered in the order of their tiles.
    """
    cases = [one for one in catalogue.benches() if one.id in COMPILED]
    if len(cases) != len(COMPILED):
        gone = sorted(set(COMPILED) - {one.id for one in cases})
        raise RuntimeError(f"no bench is called {', '.join(gone)}: choose others in COMPILED")
    say(f"compiling the kernels of {len(cases)} benches")
    found = compile_cases(cases, [SM_80, SM_90], 0, lambda *_: None)
    broken = [f"{one.arch} {one.kernel}: {one.error}" for one in found.compiled if one.error]
    if broken:
        raise RuntimeError("; ".join(broken))
    return compiled_counts(found.compiled)


def compiled_counts(compiled: Sequence[Compiled]) -> Counts:
    """Registers, spills and shared memory by architecture, bench and kernel.

    The order in which processes finish does not show.
    """
    groups: dict[str, list[tuple[Any, Counts]]] = defaultdict(list)
    for one in compiled:
        assert one.anatomy is not None and one.shared_memory_bytes is not None
        counts = {
            "registers": one.anatomy.num_registers,
            "spills": one.anatomy.num_spill_stores + one.anatomy.num_spill_loads,
            "shared_memory_bytes": one.shared_memory_bytes,
        }
        order = (sorted(one.constants.items()), one.num_warps, one.num_stages, *counts.values())
        name = f"compiled.{one.arch}.{one.cases[0]}.{one.kernel.strip('_')}"
        groups[name].append((order, counts))
    found: Counts = {}
    for name, versions in groups.items():
        for number, (_, counts) in enumerate(sorted(versions, key=lambda one: one[0]), start=1):
            label = f"{name}.{number}" if len(versions) > 1 else name
            found.update({f"{label}.{key}": value for key, value in counts.items()})
    return found


def say(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)


def environment() -> dict[str, str]:
    """What the figures depend on beside dstune: who compiles, and whose operations are counted."""
    import triton

    return {"triton": triton.__version__, "torch": ".".join(torch.__version__.split(".")[:2])}


def main() -> None:
    """Prints the document."""
    parts = (scheduler_figures, kv_figures, launch_figures, native_figures, compiled_figures)
    figures: Counts = {}
    for part in parts:
        figures |= part()
    families = groupby(sorted(figures), lambda name: name.split(".")[0])
    say(", ".join(f"{family} {len(list(names))}" for family, names in families))
    document = ExactFigures(name="dstune", environment=environment(), figures=figures)
    json.dump(document.model_dump(mode="json"), sys.stdout, indent=1, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
