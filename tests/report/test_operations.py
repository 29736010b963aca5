"""Traces and their comparison as tables, Markdown and JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
from rich.console import Console
from traces import BASE, simulated

from dstune.measure.progress import LoadProgress
from dstune.measure.record import Run
from dstune.report import operations
from dstune.report.progress import ProgressBars
from dstune.stats.operation_diff import OperationDiff, diff
from dstune.stats.operations import summarize

ATTENTION = next(iter(BASE))


def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def text_of(out: Console) -> str:
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def run() -> Run:
    return Run(verb="trace", status="finished", argv=[], started_utc="", wall_clock_zero_ns=0,
               profile={"name": "chat"}, environment={})  # fmt: skip


def planted(factor: float = 2.0) -> OperationDiff:
    rng = np.random.default_rng(1)
    return diff(simulated(rng), simulated(rng, slowed={ATTENTION: factor}))


def test_a_trace_on_the_console() -> None:
    out = console()
    made = simulated(np.random.default_rng(1))
    operations.print_trace(summarize(made), "300 steps were traced", Path("reports/x"), out)
    text = text_of(out)
    assert "prefill: 20 steps of" in text and "decode: 280 steps of" in text
    for name in (*BASE, "rest"):
        assert name in text
    assert "memory" in text and "compute" in text
    assert "steps 100.0%, idle 0.0%, http 0.0%" in text
    assert "limits: 1 GB/s, 1 GFLOP/s, measured on cpu; what lies" in text
    assert text.endswith("written to reports/x; timeline.json opens in https://ui.perfetto.dev\n")


def test_large_operations_stand_out() -> None:
    decode = summarize(simulated(np.random.default_rng(1))).phases[-1]
    table = operations.operation_table(decode)
    assert [table.rows[at][0] for at in table.marked] == list(BASE)[:2]


def test_a_difference_names_its_operation_first() -> None:
    out, found = console(), planted()
    operations.print_diff(found, out)
    first, *_ = text_of(out).split("\n")
    assert first.startswith("steps take +") and f"; {ATTENTION} explains " in first
    assert first.endswith("of the slowdown")
    table = operations.change_table(found.operations, "operation")
    assert [table.rows[at][0] for at in table.marked] == [ATTENTION]
    assert table.rows[0][5].startswith("+") and table.rows[-1][5].startswith("(")
    assert "intervals are over loads" in text_of(out)


def test_nothing_beyond_noise_is_said_so() -> None:
    one = simulated(np.random.default_rng(1))
    text = operations.headline(diff(one, one))
    assert text.startswith("no change beyond noise: steps take +0.0% ±")


def test_a_speedup_is_called_one() -> None:
    assert operations.headline(planted(0.3)).endswith("of the speedup")


def test_markdown_has_its_tables() -> None:
    text = operations.diff_markdown(planted())
    assert text.startswith("steps take +")
    assert f"| **{ATTENTION}** | all | compute |" in text
    assert "| step | before, ms | after, ms | change | share |" in text


def test_documents_are_json() -> None:
    found = planted()
    document = json.loads(json.dumps(operations.diff_document(("a", "b"), found), allow_nan=False))
    assert (document["first"], document["baseline"]) == (ATTENTION, "a")
    assert document["operations"][0]["share"]["value"] > 0.8
    summary = summarize(simulated(np.random.default_rng(1)))
    traced = operations.trace_document(Path("x"), run(), summary)
    document = json.loads(json.dumps(traced, allow_nan=False))
    assert document["summary"]["phases"][0]["phase"] == "prefill"
    assert operations.trace_document(Path("x"), run(), None)["summary"] is None


def test_progress_counts_all_loads() -> None:
    class Bars(ProgressBars):
        def __init__(self) -> None:
            self.seen: list[tuple[str, int, int, str]] = []

        def report(self, name: str, done: int, planned: int, now: str = "") -> None:
            self.seen.append((name, done, planned, now))

    bars, out = Bars(), console()
    watched = operations.TraceProgress(bars, out)
    watched.begins(run(), Path("reports/x"), 0)
    watched.advances(2, 3, LoadProgress(10, 4))
    assert bars.seen == [("requests", 14, 30, "load 2 of 3")]
    assert text_of(out) == "chat: trace; run folder reports/x\n"
