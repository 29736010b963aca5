"""Stats, imported: latencies from the per-request arrays that vLLM and SGLang both write.

`ttfts[i]` is the first chunk since the send, `itls[i]` the gaps between chunks, `output_lens[i]`
the tokens; a request that failed has 0 of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from dstune.errors import UsageError


def latencies_of_chunks(
    ttfts: Sequence[float], itls: Sequence[Sequence[float]], output_lens: Sequence[int], place: str
) -> dict[str, list[float]]:
    """TTFT, TPOT, ITL and E2E of the requests that brought tokens, in seconds.

    TPOT is (last - first chunk) / (tokens - 1): how many tokens the first chunk carried is not
    told. ITL is claimed of requests whose tokens came singly, as dstune does.
    """
    if not len(ttfts) == len(itls) == len(output_lens):
        raise UsageError(
            f"{place} is damaged: ttfts, itls and output_lens are of {len(ttfts)}, {len(itls)} "
            f"and {len(output_lens)} requests"
        )
    found: dict[str, list[float]] = {"ttft": [], "tpot": [], "itl": [], "e2e": []}
    for ttft, gaps, tokens in zip(ttfts, itls, output_lens, strict=True):
        if tokens < 1:
            continue
        found["ttft"].append(ttft)
        found["e2e"].append(ttft + sum(gaps))
        if gaps and tokens > 1:  # all in one chunk: nothing followed it
            found["tpot"].append(sum(gaps) / (tokens - 1))
        if len(gaps) == tokens - 1:
            found["itl"] += gaps
    return found
