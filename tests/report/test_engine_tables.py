"""The engine's table: what is known, and nothing for what is not."""

from __future__ import annotations

import io

from rich.console import Console

from dstune.measure.record import Estimate, Run, TrialRecord
from dstune.report.console import print_result
from dstune.report.engine_tables import engine_by_trial, engine_table
from dstune.report.markdown import summary
from dstune.report.result import LOADTEST, Result

FIGURES = {
    "queue_p50_ms": 1.234, "queue_p90_ms": 4, "queue_p99_ms": 9.5,
    "batch_size_mean": 6.25, "batch_size_p50": 6, "batch_size_p99": 12,
    "tokens_per_step_mean": 18.5, "step_p50_ms": 3.5, "step_p99_ms": 21,
    "prefill_time_share": 0.355, "kv_use_mean": 0.12, "kv_use_max": 0.403,
    "num_preempted": 7, "prefix_hit_share": 0.5,
}  # fmt: skip


def trial(figures: dict[str, float], trial_id: str = "t000", phase: str = "search") -> TrialRecord:
    return TrialRecord(
        trial_id=trial_id, phase=phase, origin="default", status="measured", knobs={}, changed={},
        figures={name: Estimate(value=value) for name, value in figures.items()},
    )  # type: ignore[arg-type]  # fmt: skip


def result(tmp_path, verb: str, *trials: TrialRecord) -> Result:  # type: ignore[no-untyped-def]
    run = Run(
        verb=verb, status="finished", argv=[], started_utc="now", wall_clock_zero_ns=0,
        profile={"name": "chat"}, environment={},
    )  # fmt: skip
    return Result(tmp_path, run, trials, None, False)


def printed(one: Result) -> str:
    out = io.StringIO()
    print_result(one, Console(file=out, width=160, color_system=None))
    return out.getvalue()


def test_every_figure_has_its_row() -> None:
    table = engine_table(trial(FIGURES))
    assert table is not None
    assert {row[0]: row[1] for row in table.rows} == {
        "queue wait p50/p90/p99, ms": "1.23/4/9.5",
        "batch size mean/p50/p99": "6.25/6/12",
        "tokens per step, mean": "18.5",
        "step p50/p99, ms": "3.5/21",
        "prefill": "35.5%",
        "KV use mean/max": "12%/40.3%",
        "preemptions": "7",
        "prefix hits": "50%",
    }


def test_what_is_unknown_is_left_out() -> None:
    table = engine_table(trial({"prefix_hit_share": 0.0}))
    assert table is not None and [row[:2] for row in table.rows] == [("prefix hits", "0%")]
    assert engine_table(trial({"ttft_p50_ms": 4})) is None
    assert engine_by_trial([trial({})]) is None and engine_by_trial([]) is None


def test_trials_stand_beside_each_other() -> None:
    failed = trial({}, "t002").model_copy(update={"status": "infeasible"})
    one, two = trial({"num_preempted": 3}, "t000"), trial({"prefix_hit_share": 0.25}, "t001")
    table = engine_by_trial([one, two, failed])
    assert table is not None
    assert table.head == ("trial", "preemptions", "prefix hits")
    assert table.rows == (("t000", "3", "-"), ("t001", "-", "25%"))


def test_a_load_test_shows_it_on_the_console_and_in_markdown(tmp_path) -> None:  # type: ignore[no-untyped-def]
    told = result(tmp_path, LOADTEST, trial(FIGURES, "loadtest", "loadtest"))
    silent = result(tmp_path, LOADTEST, trial({}, "loadtest", "loadtest"))
    assert "KV use mean/max" in printed(told) and "12%/40.3%" in printed(told)
    assert "| KV use mean/max | 12%/40.3% | of the blocks, after a step |" in summary(told)
    assert "KV use" not in printed(silent) and "## What the engine did" not in summary(silent)


def test_a_sweep_shows_it_by_trial(tmp_path) -> None:  # type: ignore[no-untyped-def]
    told = result(tmp_path, "sweep", trial(FIGURES))
    assert "35.5%" in printed(told)
    assert "## What the engine did" in summary(told) and "| t000 | 1.23/4/9.5 |" in summary(told)
    silent = result(tmp_path, "sweep", trial({}))
    assert "## What the engine did" not in summary(silent)
