"""Report: what each precision costs in perplexity, as a table and as a document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dstune.measure.record import Estimate
from dstune.report.tables import Table


@dataclass(frozen=True)
class QualityRow:
    """One precision's perplexity; `change` is relative to the first row, None in it."""

    precision: str
    kv_cache_dtype: str
    num_tokens: int
    perplexity: float
    change: Estimate | None


def quality_table(rows: Sequence[QualityRow]) -> Table:
    """Perplexity and its change in percent with the 95% interval."""
    head = ("precision", "KV cache", "tokens scored", "perplexity", "change", "95% interval")
    return Table(
        head,
        tuple(
            (
                row.precision,
                row.kv_cache_dtype,
                str(row.num_tokens),
                f"{row.perplexity:.4f}",
                _percent(row.change.value) if row.change else "-",
                f"{_percent(row.change.low)} to {_percent(row.change.high)}" if row.change else "-",
            )
            for row in rows
        ),
    )


def as_document(model: str, rows: Sequence[QualityRow]) -> dict[str, Any]:
    """The same for scripts."""
    return {
        "model": model,
        "rows": [
            {
                **asdict(row),
                "change": row.change.model_dump() if row.change else None,
            }
            for row in rows
        ],
    }


def _percent(value: float | None) -> str:
    return "?" if value is None else f"{value:+.2%}"
