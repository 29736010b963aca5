"""What the engine hands to the kernels: one step's sequences, and the model's rotation."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class AttentionBatch:
    """The sequences of one step, in the order of their tokens in the flat batch.

    Query i of a sequence stands at position kv_len - query_len + i and sees the cache up to and
    including itself. Tokens past `query_start[-1]` are padding.
    """

    positions: Tensor  # int64 [num_tokens]
    slot_mapping: Tensor  # int64 [num_tokens], block id * block_size + offset; -1 = write nothing
    query_start: Tensor  # int32 [num_seqs + 1]
    kv_lens: Tensor  # int32 [num_seqs], tokens in the cache once this step is written
    block_tables: Tensor  # int32 [num_seqs, max_blocks], padded with -1
    block_size: int
    host_query_lens: tuple[int, ...]  # the same on the host, for decisions without a sync
    host_kv_lens: tuple[int, ...]

    def first(self, num_seqs: int) -> "AttentionBatch":
        """Return the batch of the first num_seqs sequences alone, over the same memory."""
        if num_seqs == len(self.host_query_lens):
            return self
        num_tokens = sum(self.host_query_lens[:num_seqs])
        return AttentionBatch(
            positions=self.positions[:num_tokens],
            slot_mapping=self.slot_mapping[:num_tokens],
            query_start=self.query_start[: num_seqs + 1],
            kv_lens=self.kv_lens[:num_seqs],
            block_tables=self.block_tables[:num_seqs],
            block_size=self.block_size,
            host_query_lens=self.host_query_lens[:num_seqs],
            host_kv_lens=self.host_kv_lens[:num_seqs],
        )


@dataclass(frozen=True)
class Rotation:
    """A model's rotary embedding: tables fp32 [max_len, dim / 2] and how pairs lie."""

    cos: Tensor
    sin: Tensor
    interleaved: bool  # pairs (0, 1), (2, 3), ...; otherwise (0, dim / 2), (1, dim / 2 + 1), ...
