"""Stats, imported: one run as another tool tells it, before runs are gathered into a session."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from pydantic import AllowInfNan, BaseModel, ConfigDict, Field, ValidationError

from dstune.errors import UsageError
from dstune.measure.comparison import RunFigures
from dstune.stats.figures import PERCENTS
from dstune.stats.imported.documents import Document
from dstune.stats.intervals import percentile

MOST = 1 << 53  # what a float holds exactly; a file that counts more is damaged
Count = Annotated[int, Field(ge=0, le=MOST)]
UnixTime = Annotated[float, Field(ge=0, le=4e9)]
Rate = Annotated[float, AllowInfNan(True)] | str | None  # unlimited is infinite, or `inf`


@dataclass(frozen=True)
class ImportedRun:
    """A run's figures and what it was measured under; what the source does not tell is absent."""

    figures: RunFigures
    place: str
    model: str  # empty where the source does not tell
    settings: dict[str, Any] = field(default_factory=dict)  # these must agree between runs
    digests: dict[str, str] = field(default_factory=dict)  # these count where all runs agree
    # mean prompt and output tokens of a request; drawn anew in every run, they agree about
    mean_tokens: tuple[float, float] | None = None
    made: float | None = None  # for the order of runs: seconds of any clock of that tool


class Part(BaseModel):
    """What is read of a tool's document; its other keys are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False,
                              protected_namespaces=())  # fmt: skip


P = TypeVar("P", bound=Part)


def read_part(kind: type[P], document: Document, tool: str) -> P:
    """A document by its keys; raises `UsageError` that names file and key when one is wrong."""
    try:
        return kind.model_validate(document.content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise UsageError(
            f"{document.place} is no whole result of {tool}: {key}: {first['msg']}"
        ) from error


def latency_figures(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Percentiles and mean of raw latencies by dstune's names, in ms; none without a value."""
    found: dict[str, float] = {}
    for metric, values in seconds.items():
        values_ms = [1e3 * one for one in values]
        for percent in PERCENTS:
            value = percentile(values_ms, percent)
            if value is not None:
                found[f"{metric}_p{percent:g}_ms"] = value
        if values_ms:
            found[f"{metric}_mean_ms"] = sum(values_ms) / len(values_ms)
    return found


def mean_tokens(num_ok: int, prompts: float | None, outputs: float) -> tuple[float, float] | None:
    """Prompt and output tokens of a request, from their totals; None where they are not told."""
    return (prompts / num_ok, outputs / num_ok) if num_ok and prompts is not None else None


def rates(num_ok: int, output_tokens: float, duration_s: float) -> dict[str, float]:
    """Output tokens and requests per second over a tool's duration; none without either."""
    if num_ok == 0 or duration_s <= 0:
        return {}
    return {
        "output_tokens_per_s": output_tokens / duration_s,
        "requests_per_s": num_ok / duration_s,
    }


def finite(figures: Mapping[str, object]) -> dict[str, float]:
    """Those that are numbers: a tool leaves others out, or writes them as NaN."""
    return {name: one for name, value in figures.items() if (one := number(value)) is not None}


def number(value: object) -> float | None:
    """A finite number; None for anything else, such as NaN."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= MOST:
        return None
    return float(value)


def told(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that the source tells; an unlimited rate always reads `inf`."""
    known = {name: one for name, one in settings.items() if one is not None}
    return {name: "inf" if one == math.inf else one for name, one in known.items()}


def digests(lengths: Mapping[str, Sequence[float] | None]) -> dict[str, str]:
    """Of token counts, whatever their order, for requests may be listed as they ended."""
    texts = {
        name: json.dumps(sorted(map(int, values))) for name, values in lengths.items() if values
    }
    return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in texts.items()}


def utc(seconds: float) -> str:
    """Unix time as dstune writes it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
