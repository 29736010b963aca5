"""Measure: what a comparison of two systems is made of and what it comes to, as types.

The unit is one run: one load on one system, with its figures. `gate` collects runs, `stats`
judges them, `report` shows the result. Data only.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from dstune.knobs import KnobValue
from dstune.measure.record import Claim, Estimate, Record, Remark

MEAN_TOKENS = "_tokens_mean"
"""The ending of a workload's keys that need to agree about only."""


class RunFigures(Record):
    """One run; a metric without a value is left out of `figures`."""

    name: str  # a trial id, or the file that it was read from
    started_utc: str  # empty where the source does not tell
    num_ok: int
    num_failed: int  # normal requests that were rejected, failed, timed out or cut short
    figures: dict[str, float]  # by the names of stats/figures.py
    remarks: tuple[Remark, ...] = ()  # reasons to trust it less


class QualityScores(Record):
    """How well a configuration predicts a text, by window of it."""

    precision: str
    kv_cache_dtype: str
    text_digest: str  # of the windows' token ids
    num_tokens: int
    window_nlls: tuple[float, ...]  # mean of -ln p over each window's scored tokens


class Subject(Record):
    """What was measured. Two are comparable where model, precision, workload and machine agree.

    None, or an empty mapping: the source does not tell.
    """

    tool: str  # dstune, or whose result was imported
    model: str
    model_digest: str | None = None
    precision: str | None = None
    kv_cache_dtype: str | None = None
    workload: dict[str, Any] = Field(default_factory=dict)  # what was asked, as plain data
    knobs: dict[str, KnobValue] = Field(default_factory=dict)
    environment: dict[str, Any] = Field(default_factory=dict)  # of measure/fingerprint.py


class Session(Record):
    """One sitting: runs of one subject, measured one after the other on one machine."""

    schema_version: Literal[1] = 1
    name: str
    source: str  # the folder or file that it was read from
    started_utc: str
    subject: Subject
    runs: tuple[RunFigures, ...]
    quality: QualityScores | None = None


class MetricChange(Record):
    """One metric of the candidate beside the baseline's.

    `change` is relative and signed so that above 0 is worse: 0.05 is 5% slower, or 5% less
    throughput. `low` and `high` are the bounds by which the claim was made.
    """

    metric: str  # a figure's name
    baseline: float  # geometric mean over runs, in the figure's unit
    candidate: float
    change: Estimate
    sd: float | None  # of ln(candidate / baseline) over pairs; stored: of ln over sessions
    claim: Claim
    pairs_needed: int | None = None  # about how many would decide; None where decided, or unknown
    note: str = ""  # such as that p95 stands in for p99


class QualityChange(Record):
    """The candidate's perplexity beside the baseline's; `change` is relative, above 0 is worse."""

    precision: str
    kv_cache_dtype: str
    num_tokens: int
    baseline: float  # perplexity
    candidate: float
    change: Estimate  # 95% interval, paired by window
    most: float  # the largest increase that passes
    claim: Claim


class Thresholds(Record):
    """What a gate decides by."""

    min_effect: float = 0.03  # a smaller slowdown is no failure, however sure
    margin: float = 0.10  # a pass excludes a slowdown of this size
    max_perplexity_increase: float = 0.005


class OperationShare(Record):
    """An operation's part in a slowdown, from a trace of both sides."""

    operation: str
    op_class: str
    phase: str
    change: Estimate  # of its time per step, relative
    share: Estimate  # of the slowdown of all operations together
    is_memory_bound: bool | None


class GateResult(Record):
    """gate.json: the verdict and all that it rests on."""

    schema_version: Literal[1] = 1
    method: Literal["paired", "stored"]
    is_advisory: bool  # stored: no pairing, so a slowdown of 10% is often missed
    claim: Claim
    exit_code: int
    message: str  # the verdict in one line
    baseline: Session
    candidate: Session
    earlier: tuple[str, ...] = ()  # stored: the names of the earlier sessions
    thresholds: Thresholds
    metrics: tuple[MetricChange, ...]
    quality: QualityChange | None = None
    quality_note: str = ""  # why quality was not compared
    num_pairs: int = 0
    num_repeated: int = 0  # pairs that were measured again, for they could not be trusted
    notes: tuple[str, ...] = ()
    remarks: tuple[Remark, ...] = ()
    explanation: tuple[OperationShare, ...] = ()  # on a failure: what got slower, largest first


class CalibrationMetric(Record):
    """The spread of one metric between two runs of the same thing."""

    pair_sd: float  # of ln(second / first)
    num_pairs: int


class Calibration(Record):
    """What A/A pairs of one workload on one host have shown so far."""

    schema_version: Literal[1] = 1
    host: str  # digest of the environment that must agree
    profile: str
    updated_utc: str
    num_comparisons: int  # whole gates of the same thing against itself
    num_false_alarms: int
    metrics: dict[str, CalibrationMetric]
    differences: dict[str, tuple[float, ...]]  # metric -> ln(second / first) of every pair
