"""Quality by precision: the scored log-probabilities, the variants, and bad input."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from models import save_tiny

from dstune.cli.main import main
from dstune.engine.config import EngineConfig
from dstune.engine.engine import Engine
from dstune.engine.scoring import score_windows
from dstune.errors import KnobError, UsageError
from dstune.kv.validate import Variant, check_quality, plan_variants
from dstune.load.corpus import corpus_text
from dstune.load.windows import WINDOW_TOKENS, cut_windows
from dstune.model.loading.open import open_checkpoint

CONTEXT = 6


@pytest.mark.parametrize("kind", ["llama", "deepseek-v3"])
def test_scores_are_the_model_s_log_probabilities_of_the_text(kind: str, tmp_path: Path) -> None:
    reference = save_tiny(kind, tmp_path)
    config = EngineConfig.from_knobs(
        {"precision": "fp32", "kv_cache_memory_bytes": 8 << 20, "max_num_seqs": 2}
    )
    engine = Engine(open_checkpoint(str(tmp_path)), config)
    generator = torch.Generator().manual_seed(3)
    windows = torch.randint(0, 300, (3, 40), generator=generator)
    scores = score_windows(engine, windows.tolist(), CONTEXT)
    with torch.inference_mode():
        logprobs = reference(windows).logits.log_softmax(-1)
    for window, row, ours in zip(windows, logprobs, scores, strict=True):
        theirs = row[CONTEXT - 1 : -1].gather(1, window[CONTEXT:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(ours), theirs, atol=1e-4, rtol=1e-4)


def test_int8_costs_the_bundled_model_less_than_a_percent() -> None:
    variants = plan_variants(["bf16", "int8"], ["auto", "int8"])
    first, int8, int8_kv = check_quality("tiny-deepseek", variants, corpus_text(), 6)
    assert first.change is None and first.num_tokens == 6 * (WINDOW_TOKENS - 64)
    assert 2 < first.perplexity < 26.34 / 4, "far below the byte unigram"
    for found, limit in ((int8, 0.01), (int8_kv, 0.005)):
        assert found.change is not None and found.change.value is not None
        assert found.change.value < limit
        relative = found.perplexity / first.perplexity - 1
        assert math.isclose(found.change.value, relative, abs_tol=1e-9)


def test_one_thing_changes_at_a_time() -> None:
    assert plan_variants(["bf16", "int8", "fp32"], ["auto", "int8"]) == [
        Variant("bf16", "auto"),
        Variant("int8", "auto"),
        Variant("fp32", "auto"),
        Variant("bf16", "int8"),
    ]
    with pytest.raises(KnobError, match="precision must be one of"):
        plan_variants(["bf16", "int4"], ["auto"])


def test_windows_are_spread_and_do_not_overlap() -> None:
    windows = cut_windows(range(5 * WINDOW_TOKENS + 7), 3)
    assert [window[0] // WINDOW_TOKENS for window in windows] == [0, 1, 3]
    assert all(len(window) == WINDOW_TOKENS for window in windows)
    with pytest.raises(UsageError, match="at least 1024 are needed"):
        cut_windows(range(1000), 3)


@pytest.mark.parametrize(
    "arguments",
    [["--precision", "int4"], ["--text", "/no/such/file"], ["--model", "no-such-model"]],
    ids=lambda one: one[0],
)
def test_bad_input_is_one_line_and_exit_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["quality", *arguments])
    assert ended.value.code == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1 and error[0].startswith("error: ")
