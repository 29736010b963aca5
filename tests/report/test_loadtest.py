"""A load test on the console, in Markdown and live: every number in it comes from the record."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dstune.measure.progress import LoadProgress
from dstune.measure.record import (
    Accounting,
    AnomalyKind,
    Claim,
    Estimate,
    PlannedTrial,
    Remark,
    RemarkCode,
    Run,
    ServerLatency,
    SloCheck,
    Started,
    TrialRecord,
    Verdict,
)
from dstune.measure.run_folder import RunFolder
from dstune.report.console import print_result
from dstune.report.loadtest import LiveLoadtest, print_loadtest
from dstune.report.loadtest_tables import hostile_lines
from dstune.report.markdown import summary
from dstune.report.result import Result, as_document, read_result
from dstune.report.tables import trials_csv
from dstune.report.words import bucket, percent, share

RATE = {"kind": "poisson", "rate_per_s": 30.0, "duration": 60.0}
TRIAL = TrialRecord(
    trial_id="loadtest", phase="loadtest", origin="default", status="measured", knobs={},
    changed={}, elapsed_s=63.0, load="30 requests per second for 60 s", driver="http",
    figures={
        "ttft_p50_ms": Estimate(value=41.5, low=40.2, high=43.1),
        "ttft_p90_ms": Estimate(value=77, low=71, high=85),
        "ttft_p99_ms": Estimate(value=133, low=121, high=None),
        "service_ttft_p50_ms": Estimate(value=40.9, low=39, high=42),
        "service_ttft_p99_ms": Estimate(value=131, low=120, high=None),
        "itl_p50_ms": Estimate(value=9.87),
        "output_tokens_per_s": Estimate(value=1423.4),
        "goodput_per_s": Estimate(value=28.7),
        "success_rate": Estimate(value=0.99883, low=0.9957, high=0.99986),
    },
    slo=(
        SloCheck(key="ttft_p99_ms", limit=200, measured=133.2, is_met=True, claim=Claim.PASS,
                 num_samples=1708, num_over=3, num_needed=774),
        SloCheck(key="success_rate", limit=0.999, measured=0.99883, is_met=False,
                 claim=Claim.INCONCLUSIVE, num_samples=1710, num_over=2, num_needed=6294),
    ),
    anomalies=(
        AnomalyKind(kind="overlong_text", num=60, num_as_expected=60, num_beside=240,
                    is_slo_met_beside=True, outcomes={"413": 60}),
        AnomalyKind(kind="disconnect", num=30, num_as_expected=29, num_beside=37,
                    is_slo_met_beside=True, outcomes={"cancelled": 29, "failed": 1}),
    ),
    accounting=Accounting(
        num_planned=1800, num_hostile=90, by_error={"reset": 2},
        by_status={"ok": 1708, "rejected": 60, "failed": 3, "cancelled": 29},
    ),
    server_latencies={
        "service_ttft": ServerLatency(num=1740, mean_ms=43.21, buckets_ms={
            "p50": (40.0, 60.0), "p90": (60.0, 80.0), "p99": (100.0, None)}),
        "queue": ServerLatency(num=1740, mean_ms=2.5, buckets_ms={"p50": (0.0, 1.0)}),
    },
    server_counts={"num_preemptions": 4.0},
    remarks=(Remark(code=RemarkCode.BUSY_HOST, message="others took up to 12%"),),
)  # fmt: skip
LAG = Remark(code=RemarkCode.CLIENT_LAG, message="load process 0 was late; give it a core")


def result(root: Path, trial: TrialRecord | None = TRIAL, **changes: Any) -> Result:
    folder = RunFolder.create(root, "loadtest", "chat")
    run = Run(
        verb="loadtest", status="finished", argv=["loadtest", "p.yaml"], started_utc="now",
        wall_clock_zero_ns=0, profile={"name": "chat", "arrivals": RATE}, environment={},
        plan=(PlannedTrial(trial_id="loadtest", origin="default", knobs={}, changed={}),),
        verdict=Verdict(exit_code=3, message="inconclusive: success_rate"),
    )  # fmt: skip
    folder.write_run(run.model_copy(update=changes))
    if trial is not None:
        folder.append_trial(trial)
    return read_result(folder)


def printed(one: Result, width: int = 140) -> str:
    out = io.StringIO()
    print_loadtest(one, Console(file=out, width=width, color_system=None))
    return out.getvalue()


def row(text: str, label: str) -> list[str]:
    """The cells of the first row that begins with `label`."""
    (line, *_) = [one for one in text.split("\n") if re.match(rf"[│|]\s*{label}\s*[│|]", one)]
    return [cell.strip() for cell in re.split(r"[│|]", line)[1:-1]]


def test_figures_stand_with_their_intervals(tmp_path: Path) -> None:
    text = printed(result(tmp_path))
    assert row(text, "TTFT") == ["TTFT", "41.5 [40.2, 43.1]", "77 [71, 85]", "133 [121, ..]"]
    assert row(text, "ITL") == ["ITL", "9.87", "-", "-"]
    assert row(text, "E2E") == ["E2E", "-", "-", "-"]
    assert row(text, "output tokens/s")[1] == "1,423"
    assert row(text, "success rate")[1] == "99.88% [99.57%, 99.99%]"
    assert "30 requests per second for 60 s" in text


def test_each_promise_with_its_claim(tmp_path: Path) -> None:
    text = printed(result(tmp_path))
    assert row(text, "ttft_p99_ms") == [
        "ttft_p99_ms", "<= 200 ms", "133.2 ms", "3 of 1,708", "met", "pass",
    ]  # fmt: skip
    assert row(text, "success_rate") == [
        "success_rate", ">= 99.9%", "99.88%", "2 of 1,710", "missed",
        "inconclusive (6,294 needed)",
    ]  # fmt: skip


def test_hostile_requests_by_kind_and_the_handled_share(tmp_path: Path) -> None:
    text = printed(result(tmp_path))
    assert row(text, "overlong_text") == [
        "overlong_text", "60", "60", "413=60", "240", "kept", "60",
    ]  # fmt: skip
    assert row(text, "disconnect") == [
        "disconnect", "30", "29", "cancelled=29, failed=1", "37", "kept", "29",
    ]  # fmt: skip
    # Clopper-Pearson of 89 of 90
    assert "handled: 89 of 90, 98.89% [93.96%, 99.97%]; 99.9% wanted: missed" in text


def test_the_handled_share_is_claimed_or_not() -> None:
    kind = AnomalyKind(kind="empty_prompt", num=3000, num_as_expected=3000, num_beside=200,
                       is_slo_met_beside=True, outcomes={"400": 3000})  # fmt: skip
    (line,) = hostile_lines([kind])
    assert "3,000 of 3,000" in line and line.endswith("met, claim pass")
    few = kind.model_copy(update={"num": 120, "num_as_expected": 120})
    assert hostile_lines([few])[0].endswith("met, claim inconclusive (2,995 needed)")
    broken = few.model_copy(update={"is_slo_met_beside": False})
    assert hostile_lines([broken])[0].endswith("99.9% wanted: missed, claim fail")
    assert "none ended" in hostile_lines([])[0]
    assert "need not be their doing" in hostile_lines([broken], TRIAL.slo)[1]
    assert len(hostile_lines([broken], TRIAL.slo[:1])) == len(hostile_lines([few], TRIAL.slo)) == 1


def test_the_account_adds_up(tmp_path: Path) -> None:
    text = printed(result(tmp_path))
    (line,) = [one for one in text.split("\n") if one.startswith("requests:")]
    assert line == (
        "requests: 1,800 planned (90 hostile) = 1,708 ok + 60 rejected + 3 failed + 29 cancelled"
    )
    terms = re.findall(r"([\d,]+) [a-z]+(?: \+|$)", line.split("=")[1])
    assert sum(int(one.replace(",", "")) for one in terms) == 1800
    assert "errors among normal requests: reset=2" in text


def test_the_servers_buckets_stand_beside_the_clients_figures(tmp_path: Path) -> None:
    text = printed(result(tmp_path), width=200)
    server = text[text.index("by the server") :]
    assert row(server, "TTFT from the send") == [
        "TTFT from the send", "40.9", "40 to 60", "-", "60 to 80", "131", "above 100", "43.2",
        "1,740",
    ]  # fmt: skip
    assert row(server, "in its queue")[1:3] == ["-", "0 to 1"]
    assert "the server's counters rose by num_preemptions=4; its figures hold the hostile" in text
    silent = TRIAL.model_copy(update={"server_latencies": {}, "server_counts": {}})
    assert "by the server" not in printed(result(tmp_path, silent), width=200)


def test_the_trust_verdict_and_each_remark(tmp_path: Path) -> None:
    text = printed(result(tmp_path))
    assert "trust: trusted" in text and "busy_host: others took up to 12%" in text
    doubted = TRIAL.model_copy(update={"remarks": (LAG, *TRIAL.remarks)})
    text = printed(result(tmp_path, doubted))
    assert "trust: NOT TRUSTED, by client_lag\n" in text
    assert "client_lag: load process 0 was late; give it a core" in text


def test_the_verdict_and_the_folder_come_last(tmp_path: Path) -> None:
    one = result(tmp_path)
    lines = printed(one).strip().split("\n")
    assert lines[-2:] == [
        "finished: inconclusive: success_rate",
        f"written to {one.folder}",
    ]


def test_dstune_report_prints_the_same(tmp_path: Path) -> None:
    one = result(tmp_path)
    out = io.StringIO()
    print_result(one, Console(file=out, width=140, color_system=None))
    assert out.getvalue() == printed(one)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_it_fits_any_window(tmp_path: Path, width: int) -> None:
    lines = printed(result(tmp_path), width).split("\n")
    tables = [one for one in lines if one.startswith(("┃", "│", "┏", "└"))]
    assert tables and all(len(line) <= width for line in tables)


def test_markdown_has_the_verdict_first(tmp_path: Path) -> None:
    text = summary(result(tmp_path, TRIAL.model_copy(update={"remarks": (LAG,)})))
    assert text.startswith("# chat: finished: inconclusive: success_rate\n")
    assert text.index("ttft_p99_ms") < text.index("NOT TRUSTED") < text.index("## Figures")
    assert row(text, "TTFT")[1] == "41.5 [40.2, 43.1]"
    assert row(text, "disconnect")[-1] == "29"
    assert "1,800 planned (90 hostile)" in text and "| queue" not in text
    assert row(text, "in its queue")[2] == "0 to 1"


def test_json_and_csv_hold_the_trial(tmp_path: Path) -> None:
    one = result(tmp_path)
    document = json.loads(json.dumps(as_document(one), allow_nan=False))
    assert TrialRecord.model_validate(document["trials"][0]) == TRIAL
    assert "loadtest,loadtest,default,measured" in trials_csv(one)


def test_a_load_test_without_a_trial_says_how_it_ended(tmp_path: Path) -> None:
    verdict = Verdict(exit_code=130, message="interrupted before anything was measured")
    one = result(tmp_path, None, status="interrupted", verdict=verdict)
    assert printed(one).startswith("interrupted: interrupted before anything was measured\n")
    assert summary(one).startswith("# chat: interrupted")
    killed = result(tmp_path, None, status="running", verdict=None)
    assert "killed; run it again with: dstune loadtest p.yaml" in printed(killed)
    with RunFolder(killed.folder).locked():
        assert printed(read_result(RunFolder(killed.folder))).startswith("running\n")


def test_words_of_shares() -> None:
    assert [percent(one) for one in (None, 1.0, 0.0, 0.5, 0.99883, 0.99996, 0.9999999)] == [
        "-", "100%", "0%", "50%", "99.88%", "99.996%", "99.99999%",
    ]  # fmt: skip
    assert share(Estimate(value=0.5)) == "50%" and share(None) == "-"
    assert bucket(None) == "-" and bucket((2560.0, None)) == "above 2,560"


# while it runs


STARTED = Started(trial_id="loadtest", phase="loadtest", number=1, total=1, changed={},
                  eta_s=None, best=None)  # fmt: skip


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def progress(elapsed_s: float, **values: Any) -> LoadProgress:
    base: dict[str, Any] = {
        "planned": 1800, "finished": int(29 * elapsed_s), "sent": int(30 * elapsed_s),
        "in_flight": 12, "ok": int(28 * elapsed_s), "output_tokens": int(1400 * elapsed_s),
        "errors": {"bad_request": 5}, "ttft_ms": (40.0, 50.0, 60.0), "tpot_ms": (10.0, None, 10.0),
        "e2e_ms": (700.0, 700.0, 700.0), "itl_ms": (8.0, 9.0),
        "hostile": 8, "hostile_as_expected": 7,
    }  # fmt: skip
    return LoadProgress(elapsed_s=elapsed_s, **{**base, **values})


def watched(
    one: Result, arrivals: dict[str, Any], seconds: int, is_terminal: bool, per_s: int = 4,
    **values: Any,
) -> str:  # fmt: skip
    """What a run of `seconds` shows that reports `per_s` times a second."""
    out, clock = io.StringIO(), Clock()
    console = Console(file=out, width=160, force_terminal=is_terminal, color_system=None)
    slo = {"ttft_p50_ms": 1.0, "ttft_p99_ms": 55.0, "success_rate": 0.99}
    run = one.run.model_copy(update={"profile": {"name": "chat", "arrivals": arrivals, "slo": slo}})
    with LiveLoadtest(console, clock) as live:
        live.begins(run, one.folder, 0)
        live.notes("something")
        live.starts(STARTED)
        for at in range(1, seconds * per_s + 1):
            clock.now = at / per_s
            live.advances(1, 1, progress(clock.now, **values))
        live.finishes(TRIAL)
    return out.getvalue()


def test_on_a_pipe_a_plain_line_every_ten_seconds(tmp_path: Path) -> None:
    lines = watched(result(tmp_path), RATE, 45, is_terminal=False).strip().split("\n")
    assert lines[0].startswith("chat: load test for 1m 00s; run folder ")
    assert lines[1] == "note: something"
    assert lines[-1] == "the load has ended after 1m 03s"
    told = lines[2:-1]
    assert len(told) == 4
    assert told[0] == (
        "17%, 50s left: sent 300 (30/s of 30/s asked), 12 in flight, 280 ok; "
        "so far p50/p90/p99 ms TTFT 50/60/60, TPOT 10/10/10, ITL 8.5/9/9, E2E 700/700/700; "
        "1,400 tokens/s, goodput 8/s; not ok: bad_request=5; 7 of 8 hostile as expected"
    )
    assert told[3].startswith("67%, 20s left: sent 1,200 ")


def test_a_terminal_gets_a_table_at_most_twice_a_second(tmp_path: Path) -> None:
    text = watched(result(tmp_path), RATE, 10, is_terminal=True, per_s=20)
    assert "so far, ms (provisional)" in text and "sent 300 (30/s of 30/s asked)" in text
    assert row(text, "TTFT")[1:4] == ["50", "60", "60"]
    assert "bad_request=5" in text and "starting and warming up" in text
    # rich draws once more for each line that it prints, and at its end
    assert 15 <= len(re.findall("so far, ms", text)) <= 24


@pytest.mark.parametrize(
    ("arrivals", "expected"),
    [
        ({"rate_per_s": 10.0, "end_rate_per_s": 50.0, "duration": 40.0}, "of 15/s asked"),
        ({"rates_per_s": [5.0, 7.0, 9.0, 11.0], "duration": 40.0}, "of 5/s asked"),
        ({"concurrency": 8, "duration": 40.0}, "sent 300 (30/s), 12 in flight"),
        ({"rate_per_s": 10.0, "end_rate_per_s": 50.0}, "sent 300 (30/s), 12 in flight"),
    ],
)
def test_the_asked_rate_is_that_of_the_seconds_shown(
    tmp_path: Path, arrivals: dict[str, Any], expected: str
) -> None:
    assert expected in watched(result(tmp_path), arrivals, 10, is_terminal=False)


def test_without_a_duration_the_share_is_of_the_requests(tmp_path: Path) -> None:
    text = watched(result(tmp_path), {"rate_per_s": 30.0}, 10, is_terminal=False, finished=450)
    assert "25%, 30s left" in text
    text = watched(result(tmp_path), {"rate_per_s": 30.0}, 10, is_terminal=False, finished=0)
    assert "0%, time left unknown" in text


def test_after_the_last_send_it_waits_for_answers(tmp_path: Path) -> None:
    short = {**RATE, "duration": 8.0}
    text = watched(result(tmp_path), short, 10, is_terminal=False)
    assert "100%, waiting for the last 12 answers" in text


def test_the_shown_rate_is_that_of_the_last_seconds(tmp_path: Path) -> None:
    """Nothing is sent after the tenth second, which a mean from the start would hide."""
    text = watched(result(tmp_path), RATE, 30, is_terminal=False, sent=300)
    assert "sent 300 (0/s of 30/s asked)" in text.strip().split("\n")[-2]


def test_only_recent_values_are_kept(tmp_path: Path) -> None:
    out, clock = io.StringIO(), Clock()
    with LiveLoadtest(Console(file=out, width=160), clock) as live:
        live.begins(result(tmp_path).run, tmp_path, 0)
        live.starts(STARTED)
        for value in (1.0, 2.0):
            clock.now += 6
            many = (value,) * 20_000
            live.advances(1, 1, progress(clock.now, ttft_ms=many, tpot_ms=many, e2e_ms=many))
    assert "TTFT 2/2/2" in out.getvalue()
