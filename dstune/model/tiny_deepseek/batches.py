"""Cuts shuffled documents into training windows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dstune.model.tiny_deepseek.data import Document, pack_epoch


class Batches:
    """Endless batches of windows; each epoch has its own order of documents and windows."""

    def __init__(self, documents: list[Document], length: int, tokens_per_batch: int) -> None:
        self.documents, self.length = documents, length
        self.rows = tokens_per_batch // length
        self.epoch, self.cursor = -1, 0
        self._start_epoch(0)

    def _start_epoch(self, epoch: int) -> None:
        self.epoch, self.cursor = epoch, 0
        self.tokens = torch.from_numpy(pack_epoch(self.documents, epoch))
        windows = (len(self.tokens) - 1) // self.length
        self.order = np.random.default_rng(epoch).permutation(windows)

    def next(self) -> tuple[Tensor, Tensor]:
        """Input and target token ids, both [rows, length] int64."""
        if self.cursor + self.rows > len(self.order):
            self._start_epoch(self.epoch + 1)
        picked = self.order[self.cursor : self.cursor + self.rows] * self.length
        self.cursor += self.rows
        rows = torch.stack([self.tokens[at : at + self.length + 1] for at in picked]).long()
        return rows[:, :-1], rows[:, 1:]

    def skip_to(self, epoch: int, cursor: int) -> None:
        """Continue from a saved position."""
        self._start_epoch(epoch)
        self.cursor = cursor
