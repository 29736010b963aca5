"""Report: a load test on the console: its result as tables, and what has come while it runs."""

from __future__ import annotations

import re
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from dstune.measure.progress import LoadProgress
from dstune.measure.record import VOIDING, Run, Started, TrialRecord
from dstune.report import loadtest_tables as tables
from dstune.report import words
from dstune.report.engine_tables import engine_table
from dstune.report.result import Result
from dstune.report.tables import Table
from dstune.report.terminal import REFRESH_PER_S, as_rich, stdout
from dstune.stats.intervals import percentile

LINE_EVERY_S = 10.0  # where there is no terminal
MOST_RECENT = 20_000  # values per metric; older ones leave the provisional percentiles
RECENT_S = 10.0
PERCENTS = (50.0, 90.0, 99.0)
_LIMIT = re.compile(r"(ttft|tpot|e2e)_p([\d.]+)_ms")
METRICS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E"}


def print_loadtest(result: Result, console: Console | None = None) -> None:
    """Figures, promises, hostile requests, accounting, engine and server, trust, the verdict."""
    out = console or stdout()
    trial = result.loadtest
    if trial is not None and trial.is_measured:
        out.print(Text(f"{result.run.profile['name']}: {trial.load}"), soft_wrap=True)
        out.print(as_rich(tables.latency_table(trial)))
        out.print(as_rich(tables.rate_table(trial)))
        out.print(as_rich(tables.slo_table(trial.slo)))
        _print_hostile(trial, out)
        if trial.accounting is not None:
            _say(out, tables.accounting_lines(trial.accounting))
        _print_server(trial, out)
        _print_trust(trial, out)
    out.print(Text(result.headline, style="bold"), soft_wrap=True)
    out.print(Text(f"written to {result.folder}"), soft_wrap=True)


def _print_hostile(trial: TrialRecord, out: Console) -> None:
    if trial.anomalies:
        out.print(as_rich(tables.hostile_table(trial.anomalies)))
        _say(out, tables.hostile_lines(trial.anomalies, trial.slo))


def _print_server(trial: TrialRecord, out: Console) -> None:
    for table in (engine_table(trial), tables.server_table(trial)):
        if table is not None:
            out.print(as_rich(table))
    lines = (tables.agreement_line(trial), tables.server_line(trial))
    _say(out, [line for line in lines if line])


def _print_trust(trial: TrialRecord, out: Console) -> None:
    _say(out, [tables.trust_line(trial)])
    for remark in trial.remarks:
        style = "bold red" if remark.code in VOIDING else "yellow"
        out.print(Text(f"  {tables.remark_line(remark)}", style=style), soft_wrap=True)


def _say(out: Console, lines: Iterable[str]) -> None:
    for line in lines:
        out.print(Text(line), soft_wrap=True)


class LiveLoadtest:
    """A load test's observer: a live table on a terminal, a line now and then elsewhere.

    It draws when told of progress, at most twice a second, and has no thread of its own: it runs
    on the cores that are measured. What it shows is provisional; the result is computed anew.
    """

    def __init__(
        self, console: Console | None = None, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or Console(stderr=True)
        self._clock_s = clock_s
        self._live: Live | None = None
        self._shown_s = float("-inf")
        self._load = _Offered({})
        self._limits_ms: Mapping[str, float] = {}
        self._seen = _Seen({})

    def __enter__(self) -> LiveLoadtest:
        if self._console.is_terminal:
            self._live = Live(console=self._console, transient=True, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def begins(self, run: Run, folder: Path, num_finished: int) -> None:
        """Says what is going to happen."""
        self._load = _Offered(run.profile.get("arrivals", {}))
        self._limits_ms = limits_ms(run.profile.get("slo", {}))
        lasts = f" for {words.duration(self._load.duration_s)}" if self._load.duration_s else ""
        self._print(f"{run.profile['name']}: load test{lasts}; run folder {folder}")

    def notes(self, text: str) -> None:
        """Prints a note."""
        self._print(f"note: {text}")

    def starts(self, trial: Started) -> None:
        """The target is opened and warmed up; nothing counts yet."""
        self._seen = _Seen(self._limits_ms)
        self._shown_s = self._clock_s()
        if self._live is not None:
            self._live.update(Text("starting and warming up"), refresh=True)

    def advances(self, repetition: int, num_repetitions: int, progress: LoadProgress) -> None:
        """Keeps what has come, and shows it when it is time."""
        self._seen.add(progress)
        now_s = self._clock_s()
        every_s = 1 / REFRESH_PER_S if self._live is not None else LINE_EVERY_S
        if now_s - self._shown_s < every_s:
            return
        self._shown_s = now_s
        if self._live is None:
            self._print(_line(progress, self._seen, self._load))
        else:
            self._live.update(_table(progress, self._seen, self._load), refresh=True)

    def finishes(self, trial: TrialRecord) -> None:
        """Says that the load is over; the result is printed from the run folder."""
        done = "" if trial.is_measured else f": {trial.reason}"
        self._print(f"the load has ended after {words.duration(trial.elapsed_s)}{done}")

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


class _Offered:
    """What a profile's arrivals ask, read from run.json."""

    def __init__(self, arrivals: Mapping[str, Any]) -> None:
        self._arrivals = arrivals
        self.duration_s: float | None = arrivals.get("duration")

    def rate_per_s(self, elapsed_s: float) -> float | None:
        """Requests per second that are asked at this moment; None where no rate is given."""
        first, last = (self._arrivals.get(key) for key in ("rate_per_s", "end_rate_per_s"))
        steps = self._arrivals.get("rates_per_s")
        if steps is None and last is None:
            return first
        if self.duration_s is None:
            return None
        share = min(max(elapsed_s / self.duration_s, 0.0), 1.0)
        if steps is not None:
            return float(steps[min(int(share * len(steps)), len(steps) - 1)])
        return None if first is None or last is None else float(first + share * (last - first))


def limits_ms(slo: Mapping[str, Any]) -> dict[str, float]:
    """What each request has to keep to count as good, for each metric: its highest percentile's."""
    found: dict[str, tuple[float, float]] = {}
    for key, limit in slo.items():
        match = _LIMIT.fullmatch(key)
        if match is not None:
            found[match[1]] = max(found.get(match[1], (0.0, 0.0)), (float(match[2]), float(limit)))
    return {metric: limit for metric, (_, limit) in found.items()}


class _Seen:
    """The latest latencies, and what was sent, made and good over the last seconds."""

    def __init__(self, limits: Mapping[str, float]) -> None:
        self._limits_ms = limits
        self._num_good = 0
        self.latencies_ms: dict[str, deque[float]] = {
            name: deque(maxlen=MOST_RECENT) for name in METRICS
        }
        self._marks: deque[tuple[float, int, int, int]] = deque([(0.0, 0, 0, 0)])

    def add(self, progress: LoadProgress) -> None:
        """Takes in one report."""
        requests = {"ttft": progress.ttft_ms, "tpot": progress.tpot_ms, "e2e": progress.e2e_ms}
        for name, values in requests.items():
            self.latencies_ms[name].extend(value for value in values if value is not None)
        self.latencies_ms["itl"].extend(progress.itl_ms)
        names = [name for name in requests if name in self._limits_ms]
        for each in zip(*requests.values(), strict=True):
            values_of = dict(zip(requests, each, strict=True))
            self._num_good += all((values_of[one] or 0.0) <= self._limits_ms[one] for one in names)
        mark = (progress.elapsed_s, progress.sent, progress.output_tokens, self._num_good)
        self._marks.append(mark)
        while len(self._marks) > 2 and self._marks[1][0] <= progress.elapsed_s - RECENT_S:
            self._marks.popleft()

    def recent_per_s(self) -> tuple[float, float, float]:
        """Requests sent, tokens made and good requests per second, over the last seconds."""
        first, last = self._marks[0], self._marks[-1]
        seconds = last[0] - first[0]
        if seconds <= 0:
            return 0.0, 0.0, 0.0
        sent, tokens, good = ((last[at] - first[at]) / seconds for at in (1, 2, 3))
        return sent, tokens, good

    def percentiles(self, name: str) -> list[str]:
        """The provisional percentiles of one latency, in words."""
        values = array("d", self.latencies_ms[name])
        return [words.number(percentile(values, percent)) for percent in PERCENTS]


def _share_done(progress: LoadProgress, load: _Offered) -> float:
    if load.duration_s:
        return min(progress.elapsed_s / load.duration_s, 1.0)
    return progress.finished / progress.planned if progress.planned else 0.0


def _left(progress: LoadProgress, load: _Offered) -> str:
    share = _share_done(progress, load)
    if share <= 0:
        return "time left unknown"
    if share >= 1:
        return f"waiting for the last {progress.in_flight:,} answers"
    return f"{words.duration(progress.elapsed_s * (1 - share) / share)} left"


def _sent(progress: LoadProgress, seen: _Seen, load: _Offered) -> str:
    # the rate that was asked on average while what is shown beside it was sent
    rate = load.rate_per_s(progress.elapsed_s - min(progress.elapsed_s, RECENT_S) / 2)
    asked = f" of {words.number(rate)}/s asked" if rate is not None else ""
    recent = words.number(seen.recent_per_s()[0])
    return f"sent {progress.sent:,} ({recent}/s{asked}), {progress.in_flight:,} in flight"


def _made(seen: _Seen) -> str:
    _, tokens, good = map(words.number, seen.recent_per_s())
    return f"{tokens} tokens/s, goodput {good}/s"


def _errors(progress: LoadProgress) -> str:
    hostile = f"{progress.hostile_as_expected:,} of {progress.hostile:,} hostile as expected"
    return f"not ok: {words.counts(dict(progress.errors))}; {hostile}"


def _line(progress: LoadProgress, seen: _Seen, load: _Offered) -> str:
    """Everything in one line, for a pipe or a log."""
    latencies = ", ".join(
        f"{label} {'/'.join(seen.percentiles(name))}" for name, label in METRICS.items()
    )
    return (
        f"{_share_done(progress, load):.0%}, {_left(progress, load)}: "
        f"{_sent(progress, seen, load)}, {progress.ok:,} ok; so far p50/p90/p99 ms {latencies}; "
        f"{_made(seen)}; {_errors(progress)}"
    )


def _table(progress: LoadProgress, seen: _Seen, load: _Offered) -> Group:
    """The same as a table with a bar."""
    head = ("so far, ms (provisional)", *(f"p{one:g}" for one in PERCENTS), "values")
    rows = tuple(
        (label, *seen.percentiles(name), f"{len(seen.latencies_ms[name]):,}")
        for name, label in METRICS.items()
    )
    elapsed = words.duration(progress.elapsed_s)
    return Group(
        Text(f"{elapsed} in, {_left(progress, load)}"),
        Text(f"{_sent(progress, seen, load)}; {progress.ok:,} ok; {_made(seen)}"),
        as_rich(Table(head, rows)),
        Text(_errors(progress)),
        ProgressBar(total=1.0, completed=_share_done(progress, load), width=40),
    )
