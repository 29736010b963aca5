"""A figure over earlier runs, as a table and a plot."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from dstune.measure.history import History, HistoryGroup, HistoryRow, SkippedRun
from dstune.measure.record import Estimate
from dstune.report.history import heading, history_document, history_table, plot, print_history

VALUES = (100.0, 101.0, 99.0, 100.0, 120.0, 121.0, 119.0)


def row(value: float | None, at: int = 0, **changes: Any) -> HistoryRow:
    ends = {} if value is None else {"low": value - 2, "high": value + 2}
    return HistoryRow.model_validate(
        {
            "name": f"run{at}", "verb": "loadtest",
            "started_utc": f"2026-12-{at + 1:02d}T10:00:00Z", "revision": "0123456789abcdef",
            "configuration": {}, "num_runs": 3,
            "value": Estimate(value=value, **ends), "is_accepted": False, **changes,
        }
    )  # fmt: skip


def group(*rows: HistoryRow, **changes: Any) -> HistoryGroup:
    return HistoryGroup(
        **{"profile": "chat", "model": "m", "precision": "bf16", "kv_cache_dtype": "auto",
           "load": "8 requests/s", "host": "h", "machine": "2 cores of X", "rows": rows, **changes}
    )  # fmt: skip


ROWS = tuple(row(value, at, is_change=at == 4) for at, value in enumerate(VALUES))


def printed(*groups: HistoryGroup, width: int = 160, skipped: tuple[SkippedRun, ...] = ()) -> str:
    out = io.StringIO()
    found = History(metric="ttft_p50_ms", groups=groups, skipped=skipped)
    print_history(found, Console(file=out, width=width))
    return out.getvalue()


def test_the_table() -> None:
    table = history_table(group(*ROWS), "TTFT p50, ms")
    assert table.rows[4] == (
        "5", "2026-12-05T10:00:00Z", "run4", "loadtest", "0123456789ab", "default",
        "120 [118, 122]", "changed here",
    )  # fmt: skip
    assert [row[-1] for row in table.rows].count("changed here") == 1


def test_what_is_known_of_a_run_is_said() -> None:
    odd = row(None, is_accepted=True, doubt="3 of 9 requests failed", revision=None, started_utc="",
              configuration={"max_num_seqs": 4})  # fmt: skip
    assert history_table(group(odd), "x").rows == (
        ("1", "-", "run0", "loadtest", "-", "max_num_seqs=4", "-",
         "accepted; does not count: 3 of 9 requests failed"),
    )  # fmt: skip


def test_the_heading_names_what_is_known() -> None:
    assert heading(group()) == "chat; m; bf16, KV cache auto; 8 requests/s; 2 cores of X"
    nothing = dict.fromkeys(("profile", "model", "precision", "kv_cache_dtype", "load", "machine"),
                            "")  # fmt: skip
    assert heading(group(**nothing)) == "runs that do not tell what they are of"


def test_the_plot_has_every_run_and_the_change_between_the_right_two() -> None:
    lines = plot(group(*ROWS), "TTFT p50, ms", 100).split("\n")
    assert "TTFT p50, ms" in lines[0]
    inside = [
        line[line.index("┤" if "┤" in line else "│") + 1 :].rstrip("│") for line in lines[2:-2]
    ]
    points = sorted(at for line in inside for at, mark in enumerate(line) if mark == "o")
    assert len(points) == len(VALUES)
    bars = {at for line in inside for at, mark in enumerate(line) if mark == "│"}
    assert len(bars) == 1
    assert points[3] < bars.pop() < points[4]


def test_higher_values_are_drawn_higher() -> None:
    lines = plot(group(row(10.0, 0), row(20.0, 1)), "", 60).split("\n")
    heights = {"left" if line.index("o") < 30 else "right": at
               for at, line in enumerate(lines) if "o" in line}  # fmt: skip
    assert heights["right"] < heights["left"]  # lines count downwards


def test_a_doubtful_run_has_another_mark() -> None:
    text = printed(group(row(10.0, 0), row(90.0, 1, doubt="failed"), row(11.0, 2)))
    assert "x a run that does not count" in text
    drawn = plot(group(row(10.0, 0), row(90.0, 1, doubt="failed"), row(11.0, 2)), "t", 80)
    assert drawn.count("o") == 2 and drawn.count("x") == 1


@pytest.mark.parametrize("values", [(), (5.0,), (5.0, None)])
def test_a_single_value_is_no_plot(values: tuple[float | None, ...]) -> None:
    assert plot(group(*(row(value, at) for at, value in enumerate(values))), "t", 80) == ""


def test_equal_values_and_many_runs_can_be_drawn() -> None:
    many = group(*(row(5.0, at % 28) for at in range(300)))
    assert plot(many, "t", 80).count("o") > 0


def test_it_is_printed_group_by_group() -> None:
    skipped = (SkippedRun(name="torn", reason="run.json is damaged"),)
    text = printed(group(*ROWS), group(row(1.0), profile="other"), skipped=skipped)
    assert text.index("chat; m") < text.index("| the level changed") < text.index("other; m")
    assert text.rstrip().endswith("skipped torn: run.json is damaged")
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [40, 80])
def test_the_plot_fits_the_window(width: int) -> None:
    assert all(len(line) <= width for line in plot(group(*ROWS), "t", width).split("\n"))
    assert "TTFT p50" in printed(group(*ROWS), width=width)


def test_where_only_ascii_can_be_written() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    found = History(metric="ttft_p50_ms", groups=(group(*ROWS),), skipped=())
    print_history(found, Console(file=out, width=140))
    out.flush()


def test_the_document_is_the_history() -> None:
    found = History(metric="ttft_p50_ms", groups=(group(*ROWS),), skipped=())
    assert History.model_validate(json.loads(json.dumps(history_document(found)))) == found
