"""Latencies from per-request arrays: what chunks tell of tokens, and what they do not."""

from __future__ import annotations

import pytest

from dstune.stats.imported.chunks import latencies_of_chunks


def test_a_whole_answer_in_one_chunk_has_no_time_per_token() -> None:
    found = latencies_of_chunks([0.5], [[]], [8], "f")
    assert found == {"ttft": [0.5], "tpot": [], "itl": [], "e2e": [0.5]}


def test_a_single_token_has_none_either() -> None:
    assert latencies_of_chunks([0.5], [[]], [1], "f")["tpot"] == []


def test_gaps_between_chunks_of_several_tokens_are_no_itl() -> None:
    found = latencies_of_chunks([0.1, 0.1], [[0.03, 0.03], [0.01]], [5, 2], "f")
    assert found["tpot"] == pytest.approx([0.015, 0.01])
    assert found["itl"] == [0.01]


def test_what_brought_no_token_has_no_latency() -> None:
    assert not any(latencies_of_chunks([0.0], [[]], [0], "f").values())
