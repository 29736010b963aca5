"""Results of gates by hand, for tests."""

from __future__ import annotations

from typing import Any

from dstune.measure.comparison import (
    GateResult,
    MetricChange,
    OperationShare,
    QualityChange,
    RunFigures,
    Session,
    Subject,
    Thresholds,
)
from dstune.measure.record import Claim, Estimate


def estimate(value: float, low: float | None = None, high: float | None = None) -> Estimate:
    return Estimate(value=value, low=low, high=high)


def session(name: str, **knobs: Any) -> Session:
    run = RunFigures(name="p01", started_utc="", num_ok=96, num_failed=0, figures={})
    subject = Subject(tool="dstune", model="m", knobs={"max_num_seqs": 8, **knobs})
    return Session(name=name, source=name, started_utc="", subject=subject, runs=(run,))


def metric(
    name: str, claim: Claim, change: Estimate, needed: int | None = None, note: str = ""
) -> MetricChange:
    return MetricChange(metric=name, baseline=100.0, candidate=112.0, change=change, sd=0.03,
                        claim=claim, pairs_needed=needed, note=note)  # fmt: skip


QUICK = metric("output_tokens_per_s", Claim.PASS, estimate(-0.03, -0.05, -0.01))
EVEN = metric("ttft_p50_ms", Claim.PASS, estimate(0.012, -0.01, 0.034))
SLOW = metric("ttft_p95_ms", Claim.FAIL, estimate(0.12, 0.084, 0.158),
              note="p95 stands in for p99")  # fmt: skip
OPEN = metric("tpot_p99_ms", Claim.INCONCLUSIVE, estimate(0.04, -0.03, 0.12), needed=19)
EQUAL_TEXT = QualityChange(precision="bf16", kv_cache_dtype="auto", num_tokens=4096, baseline=12.0,
                           candidate=12.006, change=estimate(0.0005, -0.001, 0.002), most=0.005,
                           claim=Claim.PASS)  # fmt: skip
WORSE_TEXT = EQUAL_TEXT.model_copy(
    update={"candidate": 12.36, "change": estimate(0.03, 0.02, 0.04), "claim": Claim.FAIL}
)
ATTENTION = OperationShare(operation="attention.decode", op_class="attention", phase="decode",
                           change=estimate(0.8, 0.7, 0.9), share=estimate(0.91, 0.84, 0.98),
                           is_memory_bound=True)  # fmt: skip


def gate(claim: Claim, message: str, *metrics: MetricChange, **changes: Any) -> GateResult:
    codes = {Claim.PASS: 0, Claim.FAIL: 1, Claim.INCONCLUSIVE: 3}
    return GateResult.model_validate(
        {
            "method": "paired", "is_advisory": False, "claim": claim, "exit_code": codes[claim],
            "message": message, "baseline": session("before"),
            "candidate": session("after", max_num_seqs=4), "thresholds": Thresholds(),
            "metrics": metrics, "num_pairs": 5, "quality": EQUAL_TEXT, **changes,
        }
    )  # fmt: skip


PASSED = gate(Claim.PASS, "pass: no metric is slower by 3.4% or more", QUICK, EVEN)
FAILED = gate(Claim.FAIL, "fail: ttft_p95_ms is worse by 12.0%", QUICK, SLOW,
              explanation=(ATTENTION,), num_repeated=1)  # fmt: skip
UNDECIDED = gate(Claim.INCONCLUSIVE, "inconclusive: tpot_p99_ms worse by +4.0%", EVEN, OPEN,
                 num_pairs=12, quality=None, quality_note="not asked for")  # fmt: skip
STORED = gate(Claim.FAIL, "advisory: fail: ttft_p95_ms is worse by 12.0%", SLOW, method="stored",
              is_advisory=True, earlier=("a", "b", "c"), num_pairs=0)  # fmt: skip
TEXT_FAILED = gate(Claim.FAIL, "fail: perplexity is 3.00% higher", EVEN, quality=WORSE_TEXT)
CUT_SHORT = gate(Claim.INCONCLUSIVE, "inconclusive: interrupted", quality=None)
ALL = {"passed": PASSED, "failed": FAILED, "undecided": UNDECIDED, "stored": STORED,
       "text failed": TEXT_FAILED, "cut short": CUT_SHORT}  # fmt: skip
