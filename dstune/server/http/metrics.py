"""`/metrics`: what the server says of itself, under vLLM's names with `dstune:` before them.

prometheus_client writes the page; the observations are kept here in plain lists, because its own
histogram takes 1 to 2 us for each, and there is one per token. Not for several threads: everything
is called on the event loop's.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

PREFIX = "dstune:"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FINISH_REASONS = ("stop", "length", "abort", "timeout", "error")


def _steps(low: float, high: float, ratio: float) -> tuple[float, ...]:
    """Bounds from `low` to at least `high`, three digits each, `ratio` apart."""
    num = math.ceil(math.log(high / low) / math.log(ratio) - 1e-9)
    return tuple(float(f"{low * ratio**index:.3g}") for index in range(num + 1))


# a percentile is known to within a bucket, so the buckets are 20% wide
SECONDS = _steps(0.0002, 0.001, 1.5)[:-1] + _steps(0.001, 600.0, 1.2)
TOKENS = tuple(float(1 << power) for power in range(15))
SHARES = tuple(part / 20 for part in range(21))
SEQUENCES = (
    *map(float, range(1, 17)),
    *(
        two * part
        for two in (4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
        for part in (5, 6, 7, 8)
    ),
)

HISTOGRAMS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "time_to_first_token_seconds": ("From arrival to the first token.", SECONDS),
    "inter_token_latency_seconds": ("Between two tokens of one request.", SECONDS),
    "request_queue_time_seconds": ("From arrival to the first step.", SECONDS),
    "request_prefill_time_seconds": ("From the first step to the first token.", SECONDS),
    "request_decode_time_seconds": ("From the first token to the last.", SECONDS),
    "e2e_request_latency_seconds": ("From arrival to the last token.", SECONDS),
    "iteration_tokens_total": ("Tokens computed in one step.", TOKENS),
    # vLLM has no name for these: its steps are not told
    "batch_size": ("Sequences in one step: the effective batch.", SEQUENCES),
    "step_duration_seconds": ("Of one step.", SECONDS),
    "step_kv_cache_usage_perc": ("Share of the KV blocks in use after one step.", SHARES),
}
COUNTERS: Mapping[str, str] = {
    "prefix_cache_queries": "Prompt tokens that were looked up in the prefix cache.",
    "prefix_cache_hits": "Prompt tokens that were found in it.",
    "num_preemptions": "Sequences that lost their place and were computed again.",
    "prompt_tokens": "Tokens of the prompts of finished requests.",
    "generation_tokens": "Tokens generated.",
    "prefill_step_seconds": "Duration of the steps that computed prompt tokens.",
}
GAUGES: Mapping[str, str] = {
    "num_requests_running": "Sequences in the running batch.",
    "num_requests_waiting": "Sequences that wait for a place in it.",
    "kv_cache_usage_perc": "Share of the KV blocks that are in use, 1 for all.",
}


class _Histogram:
    """Counts per bucket, the last without an upper bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, num: int = 1) -> None:
        """Counts `num` observations of the same value."""
        self.counts[bisect_left(self.bounds, value)] += num
        self.total += value * num

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound as text, observations up to it), as Prometheus wants them."""
        pairs = []
        so_far = 0
        for bound, count in zip((*self.bounds, math.inf), self.counts, strict=True):
            so_far += count
            pairs.append(("+Inf" if bound == math.inf else repr(bound), float(so_far)))
        return pairs


class Metrics:
    """The server's figures since it started."""

    def __init__(self, model_name: str = "") -> None:
        self._model_name = model_name
        self._histograms = {name: _Histogram(bounds) for name, (_, bounds) in HISTOGRAMS.items()}
        self._counters: dict[str, float] = dict.fromkeys(COUNTERS, 0)
        self._gauges = dict.fromkeys(GAUGES, 0.0)
        self._finished = dict.fromkeys(FINISH_REASONS, 0)
        self._num_blocks = 0
        self._observe_gap = self._histograms["inter_token_latency_seconds"].observe
        self._observe_first = self._histograms["time_to_first_token_seconds"].observe
        self._registry = CollectorRegistry()
        self._registry.register(_Page(self))

    def set_capacity(self, num_blocks: int) -> None:
        """How many KV blocks there are, for the share in use."""
        self._num_blocks = num_blocks

    def observe_step(self, step: Mapping[str, int]) -> None:
        """One step of the engine, by the columns of `steps.parquet`."""
        num_prefill, num_cached = step["num_prefill_tokens"], step["num_cached_tokens"]
        num_tokens = num_prefill + step["num_decode_tokens"]
        self._counters["prefix_cache_queries"] += num_prefill + num_cached
        self._counters["prefix_cache_hits"] += num_cached
        self._counters["num_preemptions"] += step["num_preempted"]
        self._histograms["iteration_tokens_total"].observe(num_tokens)
        self._histograms["batch_size"].observe(step["num_running"])
        seconds = step["duration_ns"] / 1e9
        self._histograms["step_duration_seconds"].observe(seconds)
        if num_prefill:
            self._counters["prefill_step_seconds"] += seconds
        self._gauges["num_requests_running"] = step["num_running"]
        self._gauges["num_requests_waiting"] = step["num_waiting"]
        self._set_free(step["num_free_blocks"])
        if self._num_blocks:
            usage = self._gauges["kv_cache_usage_perc"]
            self._histograms["step_kv_cache_usage_perc"].observe(usage)

    def observe_idle(self, num_free_blocks: int) -> None:
        """Nothing runs or waits any more."""
        self._gauges["num_requests_running"] = 0
        self._gauges["num_requests_waiting"] = 0
        self._set_free(num_free_blocks)

    def _set_free(self, num_free_blocks: int) -> None:
        if self._num_blocks:
            self._gauges["kv_cache_usage_perc"] = 1 - num_free_blocks / self._num_blocks

    def observe_first_token(self, seconds: float) -> None:
        """A request's first token, so long after its arrival."""
        self._counters["generation_tokens"] += 1
        self._observe_first(seconds)

    def observe_token_gap(self, seconds: float, n: int = 1) -> None:
        """A further token, or `n` with the same gap, so long after the one before."""
        self._counters["generation_tokens"] += n
        self._observe_gap(seconds, n)

    def observe_finished(
        self,
        reason: str,
        *,
        queue_s: float | None,
        prefill_s: float | None,
        decode_s: float | None,
        e2e_s: float,
        prompt_tokens: int,
        output_tokens: int,
    ) -> None:
        """A request has ended; None for a stage that it did not reach.

        Generated tokens were counted as they came; `output_tokens` tells a request that has some.
        """
        self._finished[reason] += 1
        self._counters["prompt_tokens"] += prompt_tokens
        stages = {
            "request_queue_time_seconds": queue_s,
            "request_prefill_time_seconds": prefill_s,
            # of a single token there is nothing to decode
            "request_decode_time_seconds": decode_s if output_tokens > 1 else None,
            "e2e_request_latency_seconds": e2e_s,
        }
        for name, seconds in stages.items():
            if seconds is not None:
                self._histograms[name].observe(seconds)

    def text(self) -> bytes:
        """The page, of type `CONTENT_TYPE`."""
        return generate_latest(self._registry)

    def families(self) -> Iterator[Metric]:
        """Every metric as prometheus_client writes it."""
        labels, values = ["model_name"], [self._model_name]
        for name, meaning in GAUGES.items():
            gauge = GaugeMetricFamily(PREFIX + name, meaning, labels=labels)
            gauge.add_metric(values, self._gauges[name])
            yield gauge
        for name, meaning in COUNTERS.items():
            counter = CounterMetricFamily(PREFIX + name, meaning, labels=labels)
            counter.add_metric(values, self._counters[name])
            yield counter
        finished = CounterMetricFamily(
            PREFIX + "request_success", "Requests that have ended.",
            labels=[*labels, "finished_reason"],
        )  # fmt: skip
        for reason, num in self._finished.items():
            finished.add_metric([*values, reason], num)
        yield finished
        for name, (meaning, _) in HISTOGRAMS.items():
            kept = self._histograms[name]
            family = HistogramMetricFamily(PREFIX + name, meaning, labels=labels)
            family.add_metric(values, kept.cumulative(), kept.total)
            yield family


class _Page(Collector):
    """What the registry asks when a page is written."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return self._metrics.families()
