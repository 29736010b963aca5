"""Backends under test, and batches over scattered blocks with unwritten slots full of NaN."""

import itertools
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dstune.kernels import native
from dstune.kernels.batch import AttentionBatch
from dstune.kernels.select import Kernels, select

# The instruction sets that the native code has different paths for. "native" is what users get;
# v4 is AVX-512 without its int8 and bf16 products, v3 has no AVX-512 at all.
LEVELS = ["native"]
if platform.machine() == "x86_64":
    LEVELS += ["x86-64-v4"] if "avx512bw" in Path("/proc/cpuinfo").read_text() else []
    LEVELS += ["x86-64-v3"]


@pytest.fixture(scope="module", params=LEVELS)
def cpu(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    """The cpu backend, compiled for each instruction set in turn."""
    native.use(native.load(request.param))
    yield select("cpu", torch.device("cpu"))
    native.use(None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run every case for the native level and every fourth for the others: they share shapes."""
    lower = [item for item in items if any(f"[{level}" in item.name for level in LEVELS[1:])]
    dropped = {id(item) for index, item in enumerate(lower) if index % 4 and len(lower) > 8}
    config.hook.pytest_deselected(items=[item for item in items if id(item) in dropped])
    items[:] = [item for item in items if id(item) not in dropped]


@pytest.fixture(scope="session")
def reference() -> Kernels:
    """The reference backend."""
    return select("reference", torch.device("cpu"))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill every fresh output with NaN, so that what a kernel forgets to write shows."""

    def poisoned(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def empty(*args: Any, **options: Any) -> Tensor:
            tensor = plain(*args, **options)
            return tensor.fill_(torch.nan if tensor.is_floating_point() else -1)

        return empty

    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))
    monkeypatch.setattr(Tensor, "new_empty", poisoned(Tensor.new_empty))


@dataclass(frozen=True)
class Sequences:
    """A batch, how many blocks it needs, and the slots of each sequence's whole context."""

    batch: AttentionBatch
    num_blocks: int
    slots: tuple[Tensor, ...]


def _make_sequences(query_lens: tuple[int, ...], kv_lens: tuple[int, ...], block_size: int,
                    first_block: int = 0) -> Sequences:  # fmt: skip
    counts = [-(-kv_len // block_size) for kv_len in kv_lens]
    ids = (first_block + torch.randperm(sum(counts) + 2)).tolist()
    tables = torch.full((len(kv_lens), max([*counts, 1])), -1, dtype=torch.int32)
    slots = []
    for index, count in enumerate(counts):
        mine = torch.tensor([ids.pop() for _ in range(count)], dtype=torch.int64)
        tables[index, :count] = mine
        every = (mine[:, None] * block_size + torch.arange(block_size)).flatten()
        slots.append(every[: kv_lens[index]])
    new = [(kv - q, kv) for q, kv in zip(query_lens, kv_lens, strict=True)]
    batch = AttentionBatch(
        positions=torch.cat([torch.arange(*span) for span in new]),
        slot_mapping=torch.cat([s[slice(*span)] for s, span in zip(slots, new, strict=True)]),
        query_start=torch.tensor([0, *itertools.accumulate(query_lens)], dtype=torch.int32),
        kv_lens=torch.tensor(kv_lens, dtype=torch.int32),
        block_tables=tables,
        block_size=block_size,
        host_query_lens=query_lens,
        host_kv_lens=kv_lens,
    )
    return Sequences(batch, sum(counts) + 2, tuple(slots))


@pytest.fixture(scope="session")
def make_sequences() -> Callable[..., Sequences]:
    """Build sequences over blocks in random order: (query_lens, kv_lens, block_size)."""
    return _make_sequences
