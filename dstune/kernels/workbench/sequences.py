"""Sequences over scattered blocks, for cases that read a paged cache."""

import itertools
import math
import mmap
from dataclasses import dataclass

import torch
from torch import Tensor

from dstune.kernels.batch import AttentionBatch
from dstune.kernels.cache import SCALED
from dstune.kernels.cache_io.reference import MIN_SCALE, quantise_rows

Stored = tuple[Tensor, Tensor | None]
"""Elements of a cache, and their scales."""


@dataclass(frozen=True)
class Sequences:
    """Lengths and storage over scattered blocks; a kv_len of 0 is a padded row of a CUDA graph."""

    query_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    block_size: int = 16
    num_padding: int = 0  # tokens past the last sequence
    first_block: int = 0  # those before it are never touched

    @property
    def name(self) -> str:
        """Block size and lengths; equal ones counted."""
        pairs = zip(self.query_lens, self.kv_lens, strict=True)
        runs = [(pair, len(list(run))) for pair, run in itertools.groupby(pairs)]
        lengths = [f"{n}x{q}of{kv}" if n > 1 else f"{q}of{kv}" for (q, kv), n in runs]
        padding = f"-pad{self.num_padding}" * bool(self.num_padding)
        return f"block{self.block_size}-{'+'.join(lengths)}{padding}" + "-far" * self.is_far

    @property
    def is_far(self) -> bool:
        """Whether the cache is too large to be filled."""
        return self.first_block > 0

    @property
    def num_tokens(self) -> int:
        """Rows of the flat batch."""
        return sum(self.query_lens) + self.num_padding

    @property
    def num_blocks(self) -> int:
        """Blocks of the cache; two of them belong to nobody."""
        used = sum(-(-kv_len // self.block_size) for kv_len in self.kv_lens)
        return self.first_block + used + 2

    def lay_out(self, device: torch.device) -> tuple[AttentionBatch, Tensor]:
        """Return the batch and the slots of all cached tokens; drawn on the CPU, for `meta`."""
        size = self.block_size
        counts = [-(-kv_len // size) for kv_len in self.kv_lens]
        order = torch.randperm(sum(counts) + 2, dtype=torch.int32) + self.first_block
        tables = torch.full((len(counts), max(1, *counts)), -1, dtype=torch.int32)
        positions, cached, new, used = [], [], [], 0
        for row, (num, kv_len) in enumerate(zip(self.query_lens, self.kv_lens, strict=True)):
            tables[row, : counts[row]] = order[used : used + counts[row]]
            used += counts[row]
            place = torch.arange(kv_len)
            cached.append(tables[row, place // size].long() * size + place % size)
            new.append(cached[-1][kv_len - num :] if kv_len else torch.full((num,), -1))
            positions.append(torch.arange(max(kv_len - num, 0), max(kv_len, num)))
        starts = [0, *itertools.accumulate(self.query_lens)]
        batch = AttentionBatch(
            positions=torch.cat(positions).to(device),
            slot_mapping=torch.cat(new).to(device),
            query_start=torch.tensor(starts, dtype=torch.int32).to(device),
            kv_lens=torch.tensor(self.kv_lens, dtype=torch.int32).to(device),
            block_tables=tables.to(device),
            block_size=size,
            host_query_lens=self.query_lens,
            host_kv_lens=self.kv_lens,
        )
        return batch, torch.cat(cached).to(device)

    def store(self, row: tuple[int, ...], slots: Tensor, dtype: torch.dtype) -> Stored:
        """Return a cache of rows of that shape: random at slots, NaN elsewhere."""
        device = slots.device
        shape = (self.num_blocks, self.block_size, *row)
        rows = torch.randn(len(slots), *row, device=device)
        scales = None
        if dtype in SCALED:
            rows, row_scales = quantise_rows(rows, MIN_SCALE, dtype)
            scales = self._poisoned(shape[:-1], torch.float32, device)
            scales.flatten(0, 1)[slots] = row_scales
        cache = self._poisoned(shape, dtype, device)
        bits = (
            torch.int8 if dtype == torch.float8_e4m3fn else dtype
        )  # torch has no indexed write of fp8
        cache.flatten(0, 1).view(bits)[slots] = rows.to(dtype).view(bits)
        return cache, scales

    def _poisoned(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        if self.is_far and device.type == "cpu":  # only pages that are touched become memory
            num_bytes = math.prod(shape) * dtype.itemsize
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            return torch.frombuffer(mmap.mmap(-1, num_bytes, flags), dtype=dtype).view(shape)
        cache = torch.empty(shape, dtype=dtype, device=device)
        if not self.is_far:
            cache.view(torch.int8).fill_(-1)  # every byte 255: NaN in all float types
        return cache
