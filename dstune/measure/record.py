"""Measure: what a run folder's files hold, as types: estimates, trials, the recommendation.

Data only. `stats` fills in the figures, `tune` the rest, `report` prints them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from dstune.knobs import KnobValue, Restart

SCHEMA_VERSION = 1


class Record(BaseModel):
    """A frozen record without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Estimate(Record):
    """A figure with its 95% confidence interval; None where the samples do not reach."""

    value: float | None
    low: float | None = None
    high: float | None = None


Figures = dict[str, Estimate]
"""Figures of a trial by name; the names carry their units."""


class Claim(StrEnum):
    """What the samples allow to be said about a promise, at 95% confidence."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


class SloCheck(Record):
    """One promise beside what was measured.

    `is_met` is the point estimate's answer, which ranking uses; `claim` is what the number of
    samples allows. `num_needed` is how many samples would claim a pass, were no further one over.
    """

    key: str
    limit: float  # ms, or a share for success_rate
    measured: float | None
    is_met: bool
    claim: Claim
    num_samples: int
    num_over: int
    num_needed: int | None = None


class HostLoad(Record):
    """What else the machine did meanwhile, as shares of all its cores."""

    foreign_cpu_share: float
    steal_share: float
    own_cpu_share: float


class RemarkCode(StrEnum):
    """Every reason to trust a figure less; those of the second group void it."""

    TOO_FEW_SAMPLES = "too_few_samples"
    FAILED_REQUESTS = "failed_requests"
    FAILED_TRIALS = "failed_trials"
    FEW_REPETITIONS = "few_repetitions"
    CONFIRMATION_CUT_SHORT = "confirmation_cut_short"
    DEFAULT_NOT_MEASURED = "default_not_measured"
    NOT_SEPARATED = "not_separated"
    SET_ASIDE = "set_aside"  # trials that were not ranked, since they could not be trusted
    TOKENS_FROM_CHUNKS = "tokens_from_chunks"
    MULTI_TOKEN_CHUNKS = "multi_token_chunks"
    CLOSED_LOOP_HIDES_STALLS = "closed_loop_hides_stalls"
    BUSY_HOST = "busy_host"

    CLIENT_LAG = "client_lag"
    SCHEDULE_LAG = "schedule_lag"
    RATE_SHORT = "rate_short"
    PREFIX_CONTAMINATION = "prefix_contamination"
    COLD_START = "cold_start"
    TTFT_DISAGREES = "ttft_disagrees"
    HOST_CONTENDED = "host_contended"  # busy beyond what a figure survives
    PROMPT_LENGTH_DIFFERS = "prompt_length_differs"


VOIDING = frozenset(
    {
        RemarkCode.CLIENT_LAG,
        RemarkCode.SCHEDULE_LAG,
        RemarkCode.RATE_SHORT,
        RemarkCode.PREFIX_CONTAMINATION,
        RemarkCode.COLD_START,
        RemarkCode.TTFT_DISAGREES,
        RemarkCode.HOST_CONTENDED,
        RemarkCode.PROMPT_LENGTH_DIFFERS,
    }
)
"""The codes that void a figure: a trial with one of them is not trusted."""


class Remark(Record):
    """A reason to trust a figure less: a fixed code, the evidence, and what to do."""

    code: RemarkCode
    message: str


def is_trusted(remarks: Iterable[Remark]) -> bool:
    """Whether no remark voids the figures."""
    return all(one.code not in VOIDING for one in remarks)


class Repetition(Record):
    """One repetition of a trial: when it ran, what came out, how quiet the host was."""

    repetition: int
    started_ns: int
    finished_ns: int
    num_requests: int
    figures: Figures
    host: HostLoad | None = None
    remarks: tuple[Remark, ...] = ()


class AnomalyKind(Record):
    """One kind of hostile request, and what became of those that were sent."""

    kind: str
    num: int  # ended, in whatever way
    num_as_expected: int
    num_beside: int  # normal requests under way meanwhile
    is_slo_met_beside: bool  # not shown to be broken, at 95% confidence
    outcomes: dict[str, int]  # status or HTTP status -> requests

    @property
    def num_handled(self) -> int:
        """As expected, and the normal requests beside them kept the SLO."""
        return self.num_as_expected if self.is_slo_met_beside else 0


class Accounting(Record):
    """Where every request of a plan went; the counts add up to `num_planned`."""

    num_planned: int
    by_status: dict[str, int]  # hostile ones included
    by_error: dict[str, int]  # of the normal ones
    num_hostile: int = 0


class ServerLatency(Record):
    """One histogram of a server over a load: `p50`, `p90` and `p99` as the buckets they lie in.

    A bucket is its bounds in ms; the last one has no upper bound.
    """

    num: int
    mean_ms: float
    buckets_ms: dict[str, tuple[float, float | None]]


class TrialRecord(Record):
    """One line of trials.jsonl: a configuration and what became of it.

    `infeasible`: this model or machine cannot run it (`reason` says why); it is not tried again.
    """

    trial_id: str
    phase: Literal["search", "confirm", "loadtest", "gate"]
    origin: Literal["default", "preset", "grid"]
    status: Literal["measured", "infeasible"]
    knobs: dict[str, KnobValue]
    changed: dict[str, KnobValue]  # where it differs from the default configuration
    reason: str = ""
    error: str = ""  # the exception's class
    restart: Restart | None = None
    start_s: float = 0.0  # opening the target, where it was not open yet
    restart_s: float = 0.0
    elapsed_s: float = 0.0  # with start, restart, warm-up and every repetition
    effective: dict[str, KnobValue] = {}
    model: dict[str, Any] = {}
    repetitions: tuple[Repetition, ...] = ()
    figures: Figures = {}
    slo: tuple[SloCheck, ...] = ()
    remarks: tuple[Remark, ...] = ()
    accounting: Accounting | None = None
    anomalies: tuple[AnomalyKind, ...] = ()
    load: str = ""  # what was offered, in words
    server_latencies: dict[str, ServerLatency] = {}  # by the client's name of the same quantity
    server_counts: dict[str, float] = {}  # what its counters rose by
    driver: Literal["http", "offline"] = "offline"

    @property
    def is_measured(self) -> bool:
        """Whether there are samples."""
        return self.status == "measured"

    @property
    def is_trusted(self) -> bool:
        """Whether there are samples that nothing voids."""
        return self.is_measured and is_trusted(self.remarks)

    @property
    def meets_slo(self) -> bool:
        """Whether every promise is met by its point estimate."""
        return self.is_measured and all(check.is_met for check in self.slo)

    @property
    def claim(self) -> Claim:
        """What may be claimed about all promises together."""
        claims = {check.claim for check in self.slo}
        if Claim.FAIL in claims:
            return Claim.FAIL
        return Claim.INCONCLUSIVE if Claim.INCONCLUSIVE in claims else Claim.PASS


class PlannedTrial(Record):
    """A configuration that a sweep means to try."""

    trial_id: str
    origin: Literal["default", "preset", "grid"]
    knobs: dict[str, KnobValue]
    changed: dict[str, KnobValue]
    restart: Restart | None = None  # from the trial before it


class Started(Record):
    """A trial that begins now, for those who watch."""

    trial_id: str
    phase: Literal["search", "confirm", "loadtest", "gate"]
    number: int  # from 1
    total: int
    changed: dict[str, KnobValue]
    eta_s: float | None  # until the sweep's end; None before anything was measured
    best: TrialRecord | None


class Skipped(Record):
    """A combination that is illegal, and why."""

    changed: dict[str, KnobValue]
    reason: str


class SamplesRef(Record):
    """Where the raw samples behind a figure lie: trials/<trial_id>/requests.parquet."""

    trial_id: str
    repetition: int


class Measured(Record):
    """A configuration's confirmed figures and the samples behind every one of them."""

    trial_id: str  # of the search
    changed: dict[str, KnobValue]
    figures: Figures
    slo: tuple[SloCheck, ...]
    claim: Claim
    samples: tuple[SamplesRef, ...]


class RunnerUp(Record):
    """The second best, and its figures as multiples of the recommended one's."""

    knobs: dict[str, KnobValue]
    measured: Measured
    against_recommended: Figures


class Recommendation(Record):
    """recommended.yaml: what to run, and the evidence."""

    schema_version: Literal[1] = 1
    profile: str
    scenario: str
    objective: str
    model: str
    target: str
    load: str
    knobs: dict[str, KnobValue]
    changed: dict[str, KnobValue]
    recommended: Measured
    default: Measured | None
    gain: Figures  # the recommended configuration's figures as multiples of the default's
    runner_up: RunnerUp | None
    remarks: tuple[Remark, ...]
    environment: dict[str, Any]
    run: str
    rerun: str


class Verdict(Record):
    """How a sweep ended, in one line, and the exit code that this is."""

    exit_code: int
    message: str
    recommended: str | None = None  # trial id
    nearest: str | None = None  # trial id of the nearest miss


class Run(Record):
    """run.json."""

    schema_version: Literal[1] = 1
    verb: str
    status: Literal["running", "finished", "interrupted", "failed"]
    argv: list[str]
    started_utc: str
    wall_clock_zero_ns: int  # unix time in ns at which the run's monotonic clock read 0
    profile: dict[str, Any]
    environment: dict[str, Any]
    plan: tuple[PlannedTrial, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    not_tried: tuple[str, ...] = ()  # trial ids that the budget left no time for
    finalists: tuple[str, ...] = ()
    confirmation_rounds: int = 0
    verdict: Verdict | None = None
    resumed_utc: tuple[str, ...] = ()
