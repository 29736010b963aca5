"""Load client: how far a run has come, for those who watch it; verdicts are made of the samples."""

from __future__ import annotations

from array import array
from collections import deque
from typing import Any

from dstune.load.client.samples import e2e_ms, itls_ms, tpot_ms, ttft_ms
from dstune.measure.anomalies import is_as_expected
from dstune.measure.sample import Sample, Status

NORMAL = "normal"
KEPT = 4096  # recent values between two reports; more are left out of the live view


class Tally:
    """Counts of one run. `ok`, `failed`, `errors` and latencies are of normal requests; `handled`
    of `anomalies` ended as their kind should.
    """

    def __init__(self, planned: int) -> None:
        self._planned = planned
        self._sent = self._finished = self._ok = self._failed = 0
        self._anomalies = self._handled = 0
        self._output_tokens = 0
        self._errors: dict[str, int] = {}
        self._recent: list[tuple[float | None, float | None, float | None]] = []
        self._gaps_ms: array[float] = array("d")
        self.unreported: deque[Sample] = deque()  # for Locust's own statistics

    def begun(self) -> None:
        """A request begins."""
        self._sent += 1

    def ended(self, row: Sample) -> None:
        """A request that began has ended."""
        self._finished += 1
        self._output_tokens += row.output_tokens
        self.unreported.append(row)
        if row.kind != NORMAL:
            self._anomalies += 1
            self._handled += is_as_expected(row)
            return
        if row.status is not Status.OK:
            self._failed += 1
            self._errors[row.error.value] = self._errors.get(row.error.value, 0) + 1
            return
        self._ok += 1
        if len(self._recent) < KEPT:
            self._recent.append((ttft_ms(row), tpot_ms(row), e2e_ms(row)))
        if len(self._gaps_ms) < KEPT:
            self._gaps_ms.extend(itls_ms(row))

    def report(self, num_streaming_tokens: int) -> dict[str, Any]:
        """The `progress` event; `num_streaming_tokens` are those of requests in flight."""
        recent, self._recent = self._recent, []
        gaps_ms, self._gaps_ms = self._gaps_ms, array("d")
        return {
            "event": "progress",
            "planned": self._planned,
            "sent": self._sent,
            "in_flight": self._sent - self._finished,
            "finished": self._finished,
            "ok": self._ok,
            "failed": self._failed,
            "anomalies": self._anomalies,
            "handled": self._handled,
            "errors": self._errors,
            "output_tokens": self._output_tokens + num_streaming_tokens,
            # one entry in each list per request that ended ok; null where there is no value
            **{
                name: [_rounded(one[at]) for one in recent]
                for at, name in enumerate(("ttft_ms", "tpot_ms", "e2e_ms"))
            },
            "itl_ms": [round(gap, 3) for gap in gaps_ms],
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
