"""Drives a model over a paged cache by hand: any mix of chunks in a step, logits of every token."""

from typing import Any

import torch
from torch import Tensor

from dstune.kernels.batch import AttentionBatch
from dstune.model.model import Model


class Paged:
    """Sequences over one cache whose blocks are handed out in a scattered order."""

    def __init__(
        self,
        model: Model[Any],
        block_size: int,
        dtype: torch.dtype = torch.float32,
        num_blocks: int = 64,
    ) -> None:
        self.model = model
        self.block_size = block_size
        self.cache = model.allocate_cache(num_blocks, block_size, dtype)
        for layer in self.cache:
            for tensor in vars(layer).values():
                if tensor is not None and tensor.is_floating_point():
                    tensor.fill_(torch.nan)  # what is not written must not be read
        self._free = [(7 * index) % num_blocks for index in range(num_blocks)]
        assert len(set(self._free)) == num_blocks
        self._tables: dict[str, list[int]] = {}
        self._computed: dict[str, int] = {}

    @torch.inference_mode()
    def step(self, chunks: dict[str, list[int]]) -> dict[str, Tensor]:
        """Computes each sequence's next tokens; logits fp32 [len(chunk), vocab_size] of each."""
        starts, slots, positions = {}, [], []
        for name, chunk in chunks.items():
            table = self._tables.setdefault(name, [])
            starts[name] = self._computed.get(name, 0)
            stop = starts[name] + len(chunk)
            while len(table) * self.block_size < stop:
                table.append(self._free.pop())
            for position in range(starts[name], stop):
                positions.append(position)
                slots.append(
                    table[position // self.block_size] * self.block_size
                    + position % self.block_size
                )
            self._computed[name] = stop
        lens = [len(chunk) for chunk in chunks.values()]
        width = max(len(self._tables[name]) for name in chunks)
        tables = [self._tables[name] + [-1] * (width - len(self._tables[name])) for name in chunks]
        kv_lens = [self._computed[name] for name in chunks]
        batch = AttentionBatch(
            positions=torch.tensor(positions),
            slot_mapping=torch.tensor(slots),
            query_start=torch.tensor(
                [0, *torch.tensor(lens).cumsum(0).tolist()], dtype=torch.int32
            ),
            kv_lens=torch.tensor(kv_lens, dtype=torch.int32),
            block_tables=torch.tensor(tables, dtype=torch.int32),
            block_size=self.block_size,
            host_query_lens=tuple(lens),
            host_kv_lens=tuple(kv_lens),
        )
        flat = torch.tensor([token for chunk in chunks.values() for token in chunk])
        logits = self.model.forward(flat, batch, self.cache, torch.arange(len(flat)))
        return dict(zip(chunks, logits.split(lens), strict=True))
