"""Report: how figures, knobs and times read."""

from __future__ import annotations

from collections.abc import Mapping

from dstune.knobs import BY_NAME, KnobValue
from dstune.measure.record import Estimate, SloCheck, TrialRecord

ABSENT = "-"


def number(value: float | None) -> str:
    """Three significant digits, thousands in full."""
    if value is None:
        return ABSENT
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def precise(value: float | None) -> str:
    """Four significant digits, thousands in full: for what is held against a limit."""
    if value is None:
        return ABSENT
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def with_interval(estimate: Estimate | None) -> str:
    """`120 [110, 133]`; a bound that the samples do not reach is open."""
    if estimate is None or estimate.value is None:
        return ABSENT
    if estimate.low is None and estimate.high is None:
        return number(estimate.value)
    low = number(estimate.low) if estimate.low is not None else ".."
    high = number(estimate.high) if estimate.high is not None else ".."
    return f"{number(estimate.value)} [{low}, {high}]"


def ratio(estimate: Estimate | None) -> str:
    """`1.32x [1.20, 1.45]`."""
    if estimate is None or estimate.value is None:
        return ABSENT
    text = f"{estimate.value:.2f}x"
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{estimate.low:.2f}, {estimate.high:.2f}]"


def percent(value: float | None) -> str:
    """`99.87%`; short of all it never reads 100%."""
    if value is None:
        return ABSENT
    texts = [f"{value:.{digits}%}" for digits in (2, 3, 4, 5)]
    text = next((one for one in texts if value >= 1 or not one.startswith("100")), texts[-1])
    return text.rstrip("%").rstrip("0").rstrip(".") + "%"


def share(estimate: Estimate | None) -> str:
    """`98.3% [94.1%, 99.8%]`."""
    if estimate is None or estimate.value is None:
        return ABSENT
    text = percent(estimate.value)
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{percent(estimate.low)}, {percent(estimate.high)}]"


def counts(numbers: Mapping[str, int]) -> str:
    """`reset=3, deadline=1`."""
    return ", ".join(f"{name}={num:,}" for name, num in numbers.items()) or "none"


def bucket(bounds: tuple[float, float | None] | None) -> str:
    """`40 to 60`, or `above 2,560`."""
    if bounds is None:
        return ABSENT
    low, high = bounds
    return f"above {number(low)}" if high is None else f"{number(low)} to {number(high)}"


def knobs(changed: Mapping[str, KnobValue]) -> str:
    """`max_num_seqs=4 precision=int8`, or that it is the default configuration."""
    return " ".join(f"{name}={knob_value(value)}" for name, value in changed.items()) or "default"


def knob_value(value: KnobValue) -> str:
    """A value as YAML writes it."""
    if value is None:
        return "unset"
    return str(value).lower() if isinstance(value, bool) else str(value)


def knob_with_unit(name: str, value: KnobValue) -> str:
    """`16 tokens`."""
    unit = BY_NAME[name].unit if name in BY_NAME and value is not None else ""
    return f"{knob_value(value)} {unit}".strip()


def duration(seconds: float) -> str:
    """`1h 05m`, `2m 05s`, `12s`."""
    whole = round(max(seconds, 0.0))
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {secs:02d}s" if minutes else f"{secs}s"


def promise(check: SloCheck) -> str:
    """`ttft_p99_ms 182 <= 200: met, inconclusive at 95% (96 requests, 0 over, 299 needed)`."""
    sign = ">=" if check.key == "success_rate" else "<="
    digits = precise(check.measured)
    answer = "met" if check.is_met else "missed"
    text = f"{check.key} {digits} {sign} {check.limit:g}: {answer}, claim {check.claim}"
    needed = f", {check.num_needed} needed" if check.claim == "inconclusive" and check.num_needed \
        else ""  # fmt: skip
    return f"{text} ({check.num_samples} requests, {check.num_over} over{needed})"


def standing(trial: TrialRecord) -> str:
    """A trial against its promise: met, missed and by which key, or why it could not run."""
    if not trial.is_measured:
        return f"cannot run: {trial.reason}"
    missed = [check.key for check in trial.slo if not check.is_met]
    return f"missed {', '.join(missed)}" if missed else "met"
