"""The KV cache's blocks: who holds which, and which can be shared by equal prefixes.

A block is free when nobody refers to it. A free block keeps its contents, and its hash, until it
is handed out again: the free queue is the prefix cache's LRU order.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from dataclasses import dataclass

from dstune.engine.request import Request

ROOT_HASH = b""


@dataclass(frozen=True)
class CachedPrefix:
    """What a shareable block holds, kept so that a hit is verified and not merely believed."""

    block_id: int
    parent_hash: bytes
    token_ids: tuple[int, ...]


def hash_block(parent_hash: bytes, token_ids: tuple[int, ...]) -> bytes:
    """Digest of a full block and everything before it."""
    digest = hashlib.blake2b(parent_hash, digest_size=16)
    digest.update(array("q", token_ids).tobytes())
    return digest.digest()


class BlockManager:
    """Hands out blocks, counts references, finds cached prefixes."""

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._references = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._hash_of: dict[int, bytes] = {}
        self._cached: dict[bytes, CachedPrefix] = {}

    @property
    def num_free(self) -> int:
        """Blocks that nobody refers to, cached ones included."""
        return len(self._free)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that so many tokens fill, the last one perhaps in part."""
        return -(-num_tokens // self.block_size)

    def match_prefix(self, request: Request) -> list[int]:
        """Cached blocks that hold the request's first tokens, without taking them.

        At least one token is left over: its query must be computed to get logits.
        """
        if not self.enable_prefix_caching:
            return []
        matched: list[int] = []
        parent = ROOT_HASH
        for index in range((request.num_tokens - 1) // self.block_size):
            own = self._hash_at(request, index, parent)
            entry = self._cached.get(own)
            tokens = self._tokens_at(request, index)
            if entry is None or entry.parent_hash != parent or entry.token_ids != tokens:
                break
            matched.append(entry.block_id)
            parent = own
        return matched

    def can_admit(self, request: Request, matched: list[int]) -> bool:
        """Whether the request's every known token fits, given the blocks it can share."""
        new = self.num_blocks_for(request.num_tokens) - len(matched)
        revived = sum(self._references[block] == 0 for block in matched)
        return new + revived <= self.num_free

    def admit(self, request: Request, matched: list[int]) -> None:
        """Takes the shared blocks; the rest come by `grow` as they are computed."""
        for block in matched:
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1
        request.block_table = list(matched)
        request.num_committed_blocks = len(matched)
        request.num_computed_tokens = len(matched) * self.block_size

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Extends the request's table to hold `num_tokens`; False, and no change, if it cannot."""
        missing = self.num_blocks_for(num_tokens) - len(request.block_table)
        if missing > self.num_free:
            return False
        for _ in range(missing):
            block, _nothing = self._free.popitem(last=False)
            self._forget(block)
            self._references[block] = 1
            request.block_table.append(block)
        return True

    def commit(self, request: Request) -> None:
        """Makes the request's computed full blocks findable.

        Only after their compute: a block that is found before it is written would be read as
        garbage. A block whose contents are findable already stays private.
        """
        if not self.enable_prefix_caching:
            return
        full = request.num_computed_tokens // self.block_size
        for index in range(request.num_committed_blocks, full):
            parent = request.block_hashes[index - 1] if index else ROOT_HASH
            own = self._hash_at(request, index, parent)
            if own not in self._cached:
                block, tokens = request.block_table[index], self._tokens_at(request, index)
                self._cached[own] = CachedPrefix(block, parent, tokens)
                self._hash_of[block] = own
        request.num_committed_blocks = max(full, request.num_committed_blocks)

    def free(self, request: Request) -> None:
        """Gives back every block, the last one first, so that prefixes outlive endings."""
        for block in reversed(request.block_table):
            self._references[block] -= 1
            assert self._references[block] >= 0, f"block {block} freed twice"
            if self._references[block] == 0:
                self._free[block] = None
                if block not in self._hash_of:
                    self._free.move_to_end(block, last=False)  # nothing to keep: reuse it first
        request.block_table = []
        request.num_computed_tokens = 0

    def reset_cache(self) -> None:
        """Forgets every cached prefix; blocks in use stay with their requests."""
        self._cached.clear()
        self._hash_of.clear()

    def _forget(self, block: int) -> None:
        own = self._hash_of.pop(block, None)
        if own is not None:
            del self._cached[own]

    def _tokens_at(self, request: Request, index: int) -> tuple[int, ...]:
        start = index * self.block_size
        return tuple(request.token_ids[start : start + self.block_size])

    def _hash_at(self, request: Request, index: int, parent: bytes) -> bytes:
        if index < len(request.block_hashes):
            return request.block_hashes[index]
        assert index == len(request.block_hashes)
        request.block_hashes.append(hash_block(parent, self._tokens_at(request, index)))
        return request.block_hashes[index]
