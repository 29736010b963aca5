"""A gate's result on the console and in Markdown, and what is shown while it measures."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from gate_results import (
    ALL,
    CUT_SHORT,
    EVEN,
    FAILED,
    OPEN,
    PASSED,
    STORED,
    TEXT_FAILED,
    UNDECIDED,
    estimate,
)
from rich.console import Console

from dstune.measure.comparison import Calibration, CalibrationMetric, GateResult
from dstune.measure.progress import LoadProgress
from dstune.measure.record import Claim, Estimate, Run
from dstune.report.gate import LiveGate, gate_document, print_calibration, print_gate
from dstune.report.gate_markdown import gate_summary
from dstune.report.gate_tables import change, explanation_table, headline, metric_table, what_line


def printed(result: GateResult, folder: Path | None = None, width: int = 140) -> str:
    out = io.StringIO()
    print_gate(result, folder, Console(file=out, width=width))
    return out.getvalue()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (estimate(0.052, 0.021, 0.084), "5.2% slower [2.1% to 8.4% slower]"),
        (estimate(-0.03, -0.05, -0.01), "3.0% faster [5.0% to 1.0% faster]"),
        (estimate(0.01, -0.02, 0.04), "1.0% slower [2.0% faster to 4.0% slower]"),
        (estimate(0.01, 0.0, 0.04), "1.0% slower [0.0% to 4.0% slower]"),
        (estimate(0.0001, -0.02, 0.02), "no change [2.0% faster to 2.0% slower]"),
        (estimate(0.05, 0.03, None), "5.0% slower [from 3.0% slower]"),
        (estimate(0.05, None, 0.07), "5.0% slower [up to 7.0% slower]"),
        (estimate(0.05), "5.0% slower"),
        (Estimate(value=None), "-"),
    ],
)
def test_a_change_says_by_a_word_which_way_it_goes(value: Estimate, text: str) -> None:
    assert change(value) == text


def test_the_metric_table() -> None:
    table = metric_table(UNDECIDED)
    assert table.head == (
        "metric", "baseline", "candidate", "change", "verdict", "pairs needed",
    )  # fmt: skip
    assert table.rows[1] == (
        "TPOT p99, ms", "100", "112", "4.0% slower [3.0% faster to 12.0% slower]", "inconclusive",
        "about 19",
    )  # fmt: skip


def test_quality_is_the_last_row_where_it_was_compared() -> None:
    assert metric_table(TEXT_FAILED).rows[-1] == (
        "perplexity (bf16, KV cache auto)", "12.0000", "12.3600",
        "3.00% worse [2.00% to 4.00% worse]", "FAIL", "-",
    )  # fmt: skip
    assert len(metric_table(UNDECIDED).rows) == 2


def test_an_undecided_metric_whose_need_is_not_known() -> None:
    result = UNDECIDED.model_copy(
        update={"metrics": (OPEN.model_copy(update={"pairs_needed": None}),)}
    )
    assert metric_table(result).rows[0][-1] == "unknown"


def test_a_failure_with_its_explanation() -> None:
    table = explanation_table(FAILED)
    assert table is not None
    assert table.rows == (
        ("attention.decode", "attention", "decode", "80.0% slower [70.0% to 90.0% slower]",
         "91% [84%, 98%]", "memory"),
    )  # fmt: skip
    text = printed(FAILED, Path("reports/x"))
    assert "attention.decode" in text and "TTFT p95, ms: p95 stands in for p99" in text
    assert text.rstrip().endswith("written to reports/x")
    assert "FAIL: ttft_p95_ms is worse by 12.0%" in text


def test_the_lines_beside_the_table() -> None:
    assert headline(PASSED) == "PASS: no metric is slower by 3.4% or more"
    assert headline(STORED) == "FAIL (advisory): ttft_p95_ms is worse by 12.0%"
    assert what_line(FAILED) == (
        "candidate after against baseline before (max_num_seqs 8 -> 4): 5 interleaved pairs, "
        "1 measured again"
    )
    assert what_line(STORED).endswith("3 earlier sessions, stored")
    assert "quality was not compared: not asked for" in printed(UNDECIDED)
    assert "fails from 3.0% slower" in printed(PASSED)
    assert "perplexity may rise by 0.50%" in printed(PASSED)


def test_without_a_folder_none_is_named() -> None:
    assert "written to" not in printed(PASSED)


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("result", ALL.values(), ids=ALL)
def test_every_result_fits_any_window(result: GateResult, width: int) -> None:
    text = printed(result, width=width)
    tables = [line for line in text.splitlines() if line.startswith(("│", "┃", "┏", "└"))]
    assert all(len(line) <= width for line in tables)
    assert headline(result) in text


def test_an_advisory_result_says_so_in_every_form() -> None:
    for text in (printed(STORED), gate_summary(STORED)):
        assert "FAIL (advisory)" in text and "verdict (advisory)" in text
        assert "a slowdown of 10% is often missed" in text
    assert gate_document(STORED)["is_advisory"] is True
    for text in (printed(FAILED), gate_summary(FAILED)):
        assert "advisory" not in text


def test_markdown() -> None:
    text = gate_summary(FAILED)
    assert text.startswith("## dstune gate: FAIL: ttft_p95_ms is worse by 12.0%\n")
    assert "| TTFT p95, ms | 100 | 112 | 12.0% slower [8.4% to 15.8% slower] | FAIL | - |" in text
    assert "### What got slower" in text and "| attention.decode |" in text
    assert "### What got slower" not in gate_summary(PASSED)
    assert "| metric |" not in gate_summary(CUT_SHORT)


def test_the_document_is_the_result() -> None:
    document = json.loads(json.dumps(gate_document(FAILED)))
    assert GateResult.model_validate(document) == FAILED


RUN = Run(verb="gate", status="running", argv=["gate"], started_utc="", wall_clock_zero_ns=0,
          profile={"name": "chat"}, environment={})  # fmt: skip


def watch(live: LiveGate) -> None:
    with live:
        live.begins(RUN, Path("reports/x"), 0)
        live.notes("the machine is calibrated")
        live.notes("")
        for number, eta_s in ((1, None), (2, 125.0)):
            live.pair(number, 12, eta_s)
            live.advances(1, 1, LoadProgress(planned=96, finished=17))
        live.looked((EVEN, OPEN))


def test_elsewhere_than_on_a_terminal_each_pair_is_a_line() -> None:
    out = io.StringIO()
    watch(LiveGate(Console(file=out, width=300)))
    assert out.getvalue().splitlines() == [
        "chat: gate; run folder reports/x",
        "note: the machine is calibrated",
        "pair 1 of at most 12",
        "pair 2 of at most 12, at most 2m 05s left",
        "after 2 pairs: TTFT p50, ms 1.2% slower [1.0% faster to 3.4% slower], pass; "
        "TPOT p99, ms 4.0% slower [3.0% faster to 12.0% slower], inconclusive",
    ]


def test_on_a_terminal_the_load_that_runs_is_shown() -> None:
    out = io.StringIO()
    watch(LiveGate(Console(file=out, width=100, force_terminal=True)))
    assert "17 of 96 requests" in out.getvalue() and "after 2 pairs" in out.getvalue()


def test_a_calibration() -> None:
    out = io.StringIO()
    metrics = {"ttft_p50_ms": CalibrationMetric(pair_sd=0.001, num_pairs=145)}
    found = Calibration(host="h", profile="chat", updated_utc="", num_comparisons=29,
                        num_false_alarms=0, metrics=metrics, differences={})  # fmt: skip
    print_calibration(found, Path("c.json"), Console(file=out, width=140))
    text = out.getvalue()
    cells = [cell.strip() for cell in text.splitlines()[3].strip("│").split("│")]
    assert cells == ["TTFT p50, ms", "0.1%", "145", "100%", "100%", "100%"]
    assert (
        "0 of 29 comparisons of the same thing with itself failed: at most 10% do, at 95% "
        "confidence" in text
    )


def test_every_claim_has_its_word() -> None:
    for claim, word in ((Claim.PASS, "pass"), (Claim.FAIL, "FAIL")):
        one = EVEN.model_copy(update={"claim": claim})
        assert metric_table(PASSED.model_copy(update={"metrics": (one,)})).rows[0][4] == word
