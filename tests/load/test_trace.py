"""A trace replayed: its times, its lengths, and exactly the prefixes that it shared."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dstune.errors import UsageError
from dstune.load import build
from dstune.load.build import build_plan
from dstune.load.plan import LoadPlan
from dstune.profile.load import parse_profile

TOKENS = [(index * 7919) % 5003 for index in range(20_000)]
ROWS = [
    (0, 1300, 5, [7, 8, 9]),
    (500, 1400, 6, [7, 8, 10]),
    (500, 400, 7, [9]),  # a block seen before, at another depth, and shorter
    (2000, 512, 8, [11]),
    (2500, 60, 9, None),
    (2500, 60, 9, None),
]


def plan(tmp_path: Path, repetition: int = 0, arrivals: str = "") -> LoadPlan:
    path = tmp_path / "m.jsonl"
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    rows = [dict(zip(names, row, strict=True)) for row in ROWS]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    text = f"name: x\narrivals: {{kind: trace, path: {path}{arrivals}}}\n"
    return build_plan(parse_profile("p.yaml", text), repetition, TOKENS)


def shared(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    length = min(len(a), len(b))
    differ = np.flatnonzero(np.array(a[:length]) != np.array(b[:length]))
    return int(differ[0]) if len(differ) else length


def test_times_and_lengths_are_those_of_the_trace(tmp_path: Path) -> None:
    requests = plan(tmp_path).requests
    assert [one.offset_ns for one in requests] == [ms * 1_000_000 for ms, *_ in ROWS]
    assert [len(one.prompt_token_ids) for one in requests] == [row[1] for row in ROWS]
    assert [one.output_tokens for one in requests] == [row[2] for row in ROWS]
    assert [one.offset_ns for one in plan(tmp_path, arrivals=", speed: 4").requests] == [
        ms * 250_000 for ms, *_ in ROWS
    ]


def test_prompts_share_the_recorded_blocks_and_nothing_else(tmp_path: Path) -> None:
    prompts = [one.prompt_token_ids for one in plan(tmp_path).requests]
    assert shared(prompts[0], prompts[1]) == 1024
    assert prompts[2][:276] == prompts[0][1024:], "the same block, though at another depth"
    for a, b in [(0, 2), (0, 3), (0, 4), (4, 5), (3, 4)]:
        assert shared(prompts[a], prompts[b]) < 3


def test_a_repetition_brings_other_words_with_the_same_sharing(tmp_path: Path) -> None:
    first, second = plan(tmp_path, 0), plan(tmp_path, 1)
    assert plan(tmp_path, 1) == second
    for a in first.requests:
        for b in second.requests:
            assert shared(a.prompt_token_ids, b.prompt_token_ids) < 3
    assert shared(*(one.prompt_token_ids for one in second.requests[:2])) == 1024


def test_clipping_keeps_shared_beginnings(tmp_path: Path) -> None:
    requests = plan(tmp_path, arrivals=", clip_tokens: 700").requests
    assert [len(one.prompt_token_ids) for one in requests] == [695, 694, 400, 512, 60, 60]
    assert shared(requests[0].prompt_token_ids, requests[1].prompt_token_ids) == 694


def test_a_load_beyond_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "MOST_PROMPT_TOKENS", 3000)
    with pytest.raises(UsageError, match="more than 3,000 tokens, after 2 requests"):
        plan(tmp_path)
