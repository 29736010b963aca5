"""Exact figures as people and scripts read them."""

from __future__ import annotations

import io
import json

from rich.console import Console

from dstune.measure.exact_figures import ExactChange, ExactResult
from dstune.report.exact import exact_document, exact_markdown, exact_table, print_exact

SAME = ExactResult(
    name="mine", environment={"triton": "3.9.0"}, num_same=1234, changed=(), added={}, gone={}
)
OTHER = SAME.model_copy(
    update={
        "changed": (
            ExactChange(figure="kernels", baseline=1267, candidate=1240),
            ExactChange(figure="bytes", baseline=0.5, candidate=0.75),
        ),
        "added": {"c": 3},
        "gone": {"d": 4},
    }
)


def printed(result: ExactResult) -> str:
    out = io.StringIO()
    print_exact(result, Console(file=out, width=120, color_system=None))
    return out.getvalue()


def test_every_difference_has_its_row_in_order() -> None:
    assert exact_table(OTHER).rows == (
        ("bytes", "0.5", "0.75", "+0.25"),
        ("c", "-", "3", "added"),
        ("d", "4", "-", "gone"),
        ("kernels", "1,267", "1,240", "-27"),
    )


def test_the_console_shows_a_table_only_where_something_differs() -> None:
    assert printed(SAME) == "pass: mine: all 1,234 figures are as accepted\n"
    text = printed(OTHER)
    assert "1,267" in text and text.rstrip().split("\n")[-1].startswith("fail: mine: 2 figures")


def test_markdown_has_the_verdict_first() -> None:
    assert exact_markdown(SAME) == "pass: mine: all 1,234 figures are as accepted\n"
    lines = exact_markdown(OTHER).split("\n")
    assert lines[0].startswith("fail: mine: 2 figures changed, 1 added, 1 gone")
    assert "| kernels | 1,267 | 1,240 | -27 |" in lines


def test_the_document_names_verdict_and_exit_code() -> None:
    document = json.loads(json.dumps(exact_document(OTHER), allow_nan=False))
    assert (document["verdict"], document["exit_code"]) == ("fail", 1)
    assert document["changed"][0] == {"figure": "kernels", "baseline": 1267, "candidate": 1240}
    assert (document["added"], document["gone"]) == ({"c": 3}, {"d": 4})
    assert exact_document(SAME)["verdict"] == "pass" and exact_document(SAME)["exit_code"] == 0
