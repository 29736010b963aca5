"""Load: windows of a text, to be scored: what a precision or another version costs in quality."""

from __future__ import annotations

from collections.abc import Sequence

from dstune.errors import UsageError

WINDOW_TOKENS = 512
CONTEXT_TOKENS = 64  # of each window, not scored: before them every model guesses


def cut_windows(
    token_ids: Sequence[int], num_windows: int, size: int = WINDOW_TOKENS
) -> list[list[int]]:
    """Non-overlapping windows spread over the text; raises `UsageError` when it is too short."""
    fitting = len(token_ids) // size
    if fitting < 2:
        raise UsageError(f"the text has {len(token_ids)} tokens; at least {2 * size} are needed")
    count = min(num_windows, fitting)
    starts = [(index * fitting // count) * size for index in range(count)]
    return [list(token_ids[start : start + size]) for start in starts]
