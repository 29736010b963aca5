"""Load: the rows of a trace become requests.

A trace tells lengths and which blocks were shared, not the words. Every block id stands for 512
tokens of the corpus that begin like no others, so that two prompts share exactly the blocks that
they shared when they were recorded, in each repetition other ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dstune.load.workload import Asked, Corpus
from dstune.profile.trace import BLOCK_TOKENS, TraceRow


def ask_as_recorded(
    rows: Sequence[TraceRow], repetition: int, corpus: Corpus, rng: np.random.Generator
) -> Iterator[Asked]:
    """One request for each row; everything random is drawn before the first is yielded."""
    seeds = rng.integers(0, 1 << 31, len(rows)).tolist()
    ids = dict.fromkeys(one for row in rows for one in row.hash_ids or ())
    order = {block: index for index, block in enumerate(ids)}
    first = repetition * (len(order) + len(rows))
    blocks: dict[int, tuple[int, ...]] = {}

    def prompt(index: int, row: TraceRow) -> tuple[int, ...]:
        if row.hash_ids is None:
            return corpus.prompt(first + len(order) + index, row.prompt_tokens)
        for block in row.hash_ids:
            if block not in blocks:
                blocks[block] = corpus.prompt(first + order[block], BLOCK_TOKENS)
        whole = tuple(token for block in row.hash_ids for token in blocks[block])
        return whole[: row.prompt_tokens]

    return (
        Asked(prompt(index, row), row.output_tokens, seed)
        for index, (row, seed) in enumerate(zip(rows, seeds, strict=True))
    )
