"""Report: what the engine did under a load, for one trial and beside other trials."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dstune.measure.record import Estimate, TrialRecord
from dstune.report import words
from dstune.report.tables import Table

Show = Callable[[Estimate | None], str]


def _number(estimate: Estimate | None) -> str:
    return words.number(estimate.value if estimate else None)


ROWS: tuple[tuple[str, tuple[str, ...], Show, str], ...] = (
    ("queue wait p50/p90/p99, ms", ("queue_p50_ms", "queue_p90_ms", "queue_p99_ms"), _number,
     "of a request, from its arrival to its first step"),
    ("batch size mean/p50/p99", ("batch_size_mean", "batch_size_p50", "batch_size_p99"), _number,
     "sequences in a step"),
    ("tokens per step, mean", ("tokens_per_step_mean",), _number,
     "computed, of prompts and answers"),
    ("step p50/p99, ms", ("step_p50_ms", "step_p99_ms"), _number, "duration of a step"),
    ("prefill", ("prefill_time_share",), words.share,
     "of the steps' time, in steps with prompt tokens"),
    ("KV use mean/max", ("kv_use_mean", "kv_use_max"), words.share, "of the blocks, after a step"),
    ("preemptions", ("num_preempted",), _number, "of sequences, which are computed again"),
    ("prefix hits", ("prefix_hit_share",), words.share, "of the prompt tokens"),
)  # fmt: skip
"""Label, figures, how one reads, and what it counts."""


def engine_table(trial: TrialRecord) -> Table | None:
    """What the engine did; rows of which nothing is known are left out, None without any."""
    rows = tuple(
        (label, "/".join(show(trial.figures.get(name)) for name in names), counts)
        for label, names, show, counts in ROWS
        if _is_known(trial, names)
    )
    return Table(("engine", "value", "what it counts"), rows) if rows else None


def engine_by_trial(trials: Sequence[TrialRecord]) -> Table | None:
    """A row for each trial; columns of which nothing is known are left out, None without any."""
    measured = [one for one in trials if one.is_measured]
    known = [one for one in ROWS if any(_is_known(trial, one[1]) for trial in measured)]
    rows = tuple(
        (trial.trial_id, *("/".join(show(trial.figures.get(name)) for name in names)
                           for _, names, show, _ in known))
        for trial in measured
    )  # fmt: skip
    return Table(("trial", *(label for label, *_ in known)), rows) if known else None


def _is_known(trial: TrialRecord, names: Sequence[str]) -> bool:
    found = (trial.figures.get(name) for name in names)
    return any(one is not None and one.value is not None for one in found)
