"""Gate: how well a side predicts a text, since a speed-up that costs quality is none."""

from __future__ import annotations

import hashlib
from typing import Protocol, runtime_checkable

from dstune.errors import DstuneError, UsageError
from dstune.gate.contest import Contestant
from dstune.gate.plan import GateSetting
from dstune.load.windows import CONTEXT_TOKENS, WINDOW_TOKENS, cut_windows
from dstune.measure.comparison import QualityScores


@runtime_checkable
class Scoring(Protocol):
    """A target that tells how probable a text is to it."""

    def score(self, windows: list[list[int]], context_tokens: int) -> list[float]:
        """Mean of -ln p over each window's tokens after the first `context_tokens`."""


def score_side(one: Contestant, num_windows: int, setting: GateSetting) -> QualityScores | str:
    """Scores of windows of the bundled text, or why the side cannot tell them.

    Windows are spread over the text and as long as the configuration allows.
    """
    target = one.target
    effective = one.effective
    if not isinstance(target, Scoring):
        return f"the {one.side.name} cannot score a text: only dstune's own engine does"
    length = effective.get("max_model_len")
    size = min(WINDOW_TOKENS, length - 1) if isinstance(length, int) else WINDOW_TOKENS
    try:
        tokens = target.tokenize(setting.corpus())
        if size <= 2 * CONTEXT_TOKENS:
            raise UsageError(f"windows of {size} tokens are too short to be scored")
        windows = cut_windows(tokens, num_windows, size)
        nlls = target.score(windows, CONTEXT_TOKENS)
    except DstuneError as error:  # an earlier version may not know how, random weights have no text
        return f"the {one.side.name} cannot score a text: {error}"
    digest = hashlib.sha256(repr(windows).encode()).hexdigest()[:16]
    return QualityScores(
        precision=str(effective.get("precision")),
        kv_cache_dtype=str(effective.get("kv_cache_dtype")),
        text_digest=digest,
        num_tokens=len(windows) * (size - CONTEXT_TOKENS),
        window_nlls=tuple(nlls),
    )
