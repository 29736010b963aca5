"""Each tool's file read into dstune's figures, by numbers worked out by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from samples import sample

from dstune.errors import DstuneError
from dstune.measure.comparison import Session
from dstune.measure.sample import Sample, Status
from dstune.stats.figures import figures_of
from dstune.stats.imported import read_results
from dstune.stats.metrics import Loop
from dstune.stats.vllm_bench import vllm_bench

NUM_INPUT = [11, 12, 13]


def read(path: Path, *documents: Any) -> Session:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(one) for one in documents))
    return read_results(path.parent)


# two requests that ended ok: tokens at 100, 110, 130, 160 ms; 3 tokens in chunks at 200, 240 ms
ARRAYS: dict[str, Any] = {
    "input_lens": NUM_INPUT, "output_lens": [4, 3, 0], "ttfts": [0.1, 0.2, 0.0],
    "itls": [[0.01, 0.02, 0.03], [0.04], []], "errors": ["", "", "HTTP 500"],
}  # fmt: skip
BY_HAND = {
    "output_tokens_per_s": 3.5,  # 7 tokens in 2 s
    "requests_per_s": 1.0,
    "ttft_p50_ms": 150.0,  # of 100 and 200
    "ttft_p90_ms": 190.0,
    "ttft_p95_ms": 195.0,
    "ttft_p99_ms": 199.0,
    "ttft_mean_ms": 150.0,
    "tpot_p50_ms": 20.0,  # (160 - 100) / 3 and (240 - 200) / 2
    "tpot_p99_ms": 20.0,
    "e2e_p50_ms": 200.0,  # of 160 and 240
    "e2e_p99_ms": 239.2,
}


def shares(found: dict[str, float], wanted: dict[str, float]) -> None:
    assert {name: found.get(name) for name in wanted} == pytest.approx(wanted)


def vllm(**changes: Any) -> dict[str, Any]:
    return {
        "date": "20261201-100000", "endpoint_type": "vllm", "backend": "vllm", "label": "vllm",
        "model_id": "org/m", "tokenizer_id": "org/m", "num_prompts": 3, "request_rate": "inf",
        "burstiness": 1.0, "max_concurrency": 2, "duration": 2.0, "completed": 2, "failed": 1,
        "total_input_tokens": 23, "total_output_tokens": 7, "request_throughput": 1.0,
        "request_goodput": None, "output_throughput": 3.5, "total_token_throughput": 15.0,
        **changes,
    }  # fmt: skip


def test_vllm_from_the_raw_arrays(tmp_path: Path) -> None:
    session = read(tmp_path / "r.json", vllm(**ARRAYS, median_ttft_ms=7.0))
    (run,) = session.runs
    shares(run.figures, BY_HAND)
    assert run.figures["itl_p50_ms"] == pytest.approx(20.0)  # of 10, 20, 30: the other came chunked
    assert (run.num_ok, run.num_failed) == (2, 1)
    assert session.subject.model == "org/m"
    assert run.started_utc == session.started_utc == "2026-12-01T10:00:00"  # of an unknown zone
    workload = session.subject.workload
    assert {"request_rate": "inf", "concurrency": 2, "num_prompts": 3}.items() <= workload.items()
    assert (workload["prompt_tokens_mean"], workload["output_tokens_mean"]) == (11.5, 3.5)
    assert workload["backend"] == "vllm"
    assert not any(name.endswith("digest") for name in workload)  # a request was lost


def test_vllm_from_the_summary(tmp_path: Path) -> None:
    summary = {
        "mean_ttft_ms": 150.0, "median_ttft_ms": 150.0, "std_ttft_ms": 50.0, "p99_ttft_ms": 199.0,
        "p99.9_ttft_ms": 199.9, "median_tpot_ms": 20.0, "p99_tpot_ms": float("nan"),
        "median_itl_ms": 25.0, "p99_itl_ms": 39.0, "median_e2el_ms": 200.0, "p99_e2el_ms": 239.2,
    }  # fmt: skip
    (run,) = read(tmp_path / "r.json", vllm(**summary)).runs
    assert run.figures == pytest.approx(
        {
            "output_tokens_per_s": 3.5, "requests_per_s": 1.0, "ttft_mean_ms": 150.0,
            "ttft_p50_ms": 150.0, "ttft_p99_ms": 199.0, "ttft_p99.9_ms": 199.9,
            "tpot_p50_ms": 20.0, "e2e_p50_ms": 200.0, "e2e_p99_ms": 239.2,
        }
    )  # fmt: skip


def test_vllm_before_it_told_failures(tmp_path: Path) -> None:
    old = vllm()
    del old["failed"]
    (run,) = read(tmp_path / "r.json", old).runs
    assert run.num_failed == 1


def samples_of_a_run() -> list[Sample]:
    """Sent 5 ms late each, so that TTFT from the intended time differs from what vLLM counts."""
    done = [
        sample(20.0 * at, 20.0 * at + 5, [20.0 * at + 5 + 30 + at + 10 * each for each in range(4)])
        for at in range(40)
    ]
    return [*done, sample(900, 905, (), status=Status.FAILED)]


def test_what_dstune_exports_reads_back_as_its_own_figures(tmp_path: Path) -> None:
    samples = samples_of_a_run()
    exported = vllm_bench(samples, Loop.BATCH, [], None)
    (run,) = read(tmp_path / "vllm_bench-0.json", exported).runs
    own = figures_of([samples], Loop.BATCH, [])
    assert (run.num_ok, run.num_failed) == (40, 1)
    for percent in (50, 90, 95, 99):
        for theirs, ours in (("ttft", "service_ttft"), ("tpot", "tpot"), ("itl", "itl")):
            value = own[f"{ours}_p{percent}_ms"].value
            assert run.figures[f"{theirs}_p{percent}_ms"] == pytest.approx(value)
        e2e = own[f"e2e_p{percent}_ms"].value
        assert e2e is not None  # theirs runs from the actual send, 5 ms later
        assert run.figures[f"e2e_p{percent}_ms"] == pytest.approx(e2e - 5)
    for name in ("output_tokens_per_s", "requests_per_s"):
        assert run.figures[name] == pytest.approx(own[name].value)


def sglang(**changes: Any) -> dict[str, Any]:
    return {
        "tag": None, "backend": "sglang", "dataset_name": "random", "request_rate": float("inf"),
        "max_concurrency": 2, "random_input_len": 12, "random_output_len": 4, "duration": 2.0,
        "server_info": {"model_path": "org/m", "version": "0.5"}, "completed": 2,
        "total_input_tokens": 23, "total_output_tokens": 7, "total_output_tokens_retokenized": 7,
        "request_throughput": 1.0, "total_throughput": 15.0, "median_ttft_ms": 1.0,
        **ARRAYS, **changes,
    }  # fmt: skip


def test_sglang_line_by_line(tmp_path: Path) -> None:
    session = read(tmp_path / "out.jsonl", sglang(), sglang(duration=4.0))
    first, second = session.runs
    shares(first.figures, BY_HAND)
    assert not any(name.startswith("itl") for name in first.figures)
    assert (first.num_ok, first.num_failed, first.name) == (2, 1, "out.jsonl, line 1")
    assert second.figures["output_tokens_per_s"] == pytest.approx(1.75)
    assert (session.subject.tool, session.subject.model) == ("sglang bench_serving", "org/m")
    assert session.subject.workload["request_rate"] == "inf"


def test_sglang_does_not_tell_the_model_without_the_server(tmp_path: Path) -> None:
    session = read(tmp_path / "out.jsonl", sglang(server_info=None))
    assert session.subject.model == ""


def guidellm_request(start: float, tokens_ms: list[float], num: int) -> dict[str, Any]:
    first, last = start + tokens_ms[0] / 1e3, start + tokens_ms[-1] / 1e3
    return {
        "info": {"timings": {"request_start": start, "first_token_iteration": first,
                             "last_token_iteration": last, "request_end": last + 0.05}},
        "prompt_tokens": 10, "output_tokens": num, "request_latency": last + 0.05 - start,
        "time_to_first_token_ms": tokens_ms[0],
        "time_per_output_token_ms": tokens_ms[-1] / num,
        "inter_token_latency_ms": (tokens_ms[-1] - tokens_ms[0]) / (num - 1) if num > 1 else None,
    }  # fmt: skip


def guidellm(rate: float = 2.0, **changes: Any) -> dict[str, Any]:
    """The two requests of `ARRAYS` within 2 s, and summaries that say something else."""
    other = {"mean": 1.0, "total_sum": 7.0, "percentiles": {"p50": 77.0, "p95": 88.0, "p99": 99.0}}
    benchmark = {
        "type_": "generative_benchmark",
        "config": {"strategy": {"type_": "constant", "rate": rate}, "backend": {"model": "org/m"}},
        "scheduler_metrics": {"measure_start_time": 1_800_000_000.0,
                              "measure_end_time": 1_800_000_002.0},
        "metrics": {
            "request_totals": {"successful": 2, "errored": 1, "incomplete": 4, "total": 7},
            "requests_per_second": {"successful": {"mean": 0.7}},
            "output_tokens_per_second": {"successful": {"mean": 2.5}},
            **{name: {"successful": other} for name in
               ("output_token_count", "time_to_first_token_ms", "time_per_output_token_ms",
                "inter_token_latency_ms", "request_latency")},
        },
        "requests": {"successful": [guidellm_request(1_800_000_000.5, [100, 110, 130, 160], 4),
                                    guidellm_request(1_800_000_001.0, [200, 240], 3)]},
    }  # fmt: skip
    return {"args": {"max_requests": 7, "data": ["prompt_tokens=10"]}, "benchmarks": [
        {**benchmark, **changes}]}  # fmt: skip


def test_guidellm_from_its_requests(tmp_path: Path) -> None:
    session = read(tmp_path / "benchmarks.json", guidellm())
    (run,) = session.runs
    shares(run.figures, BY_HAND)
    assert not any(name.startswith("itl") for name in run.figures)
    assert (run.num_ok, run.num_failed) == (2, 1)  # incomplete ones are neither
    assert run.started_utc == session.started_utc == "2027-01-15T08:00:00Z"
    assert session.subject.workload["request_rate"] == 2.0


def test_guidellm_from_its_summary_where_not_all_requests_are_listed(tmp_path: Path) -> None:
    requests = {"successful": guidellm()["benchmarks"][0]["requests"]["successful"][:1]}
    session = read(tmp_path / "benchmarks.json", guidellm(requests=requests))
    assert session.runs[0].figures == {
        "output_tokens_per_s": 3.5, "requests_per_s": 1.0,
        "ttft_p50_ms": 77.0, "ttft_p95_ms": 88.0, "ttft_p99_ms": 99.0,
    }  # fmt: skip
    assert not any(name.endswith("digest") for name in session.subject.workload)


def test_guidellm_with_several_benchmarks_of_one_load(tmp_path: Path) -> None:
    report = guidellm()
    report["benchmarks"] *= 2
    names = [one.name for one in read(tmp_path / "b.json", report).runs]
    assert names == ["b.json, benchmark 1", "b.json, benchmark 2"]


def aiperf_record(start_ms: float, tokens_ms: list[float], num: int, **metadata: Any) -> Any:
    gaps = [b - a for a, b in pairwise(tokens_ms)]
    start_ns = 1_800_000_000_000_000_000 + int(start_ms * 1e6)
    metrics = {
        "input_sequence_length": (10, "tokens"), "output_sequence_length": (num, "tokens"),
        "time_to_first_token": (tokens_ms[0], "ms"), "request_latency": (tokens_ms[-1], "ms"),
        "inter_token_latency": ((tokens_ms[-1] - tokens_ms[0]) / (num - 1), "ms"),
        "inter_chunk_latency": (gaps, "ms"),
    }  # fmt: skip
    return {
        "metadata": {"request_start_ns": start_ns,
                     "request_end_ns": start_ns + int(tokens_ms[-1] * 1e6),
                     "benchmark_phase": "profiling", "was_cancelled": False, **metadata},
        "metrics": {name: {"value": value, "unit": unit}
                    for name, (value, unit) in metrics.items()},
        "error": None,
    }  # fmt: skip


def aiperf_lost(**metadata: Any) -> Any:
    one = aiperf_record(0, [1, 2], 2, **metadata)
    return {**one, "metrics": {}, "error": {"code": 500, "type": "x", "message": "y"}}


RECORDS = [
    aiperf_record(0, [100, 110, 130, 160], 4),
    aiperf_record(1760, [200, 240], 3),  # ends 2 s after the first send
    aiperf_record(5000, [900, 990], 2, benchmark_phase="warmup"),
    aiperf_lost(),
    aiperf_lost(was_cancelled=True),
]
SUMMARY: dict[str, Any] = {
    "schema_version": "1.3", "aiperf_version": "0.10.0",
    "request_count": {"unit": "requests", "avg": 2.0},
    "error_request_count": {"unit": "requests", "avg": 2.0},
    "request_throughput": {"unit": "requests/sec", "avg": 0.8},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 2.8},
    "time_to_first_token": {"unit": "ms", "avg": 150.0, "p50": 150.0, "p95": 195.0, "p99": 199.0,
                            "min": 100.0, "count": 2},
    "inter_token_latency": {"unit": "sec", "p99": 0.02},
    "inter_chunk_latency": {"unit": "ms", "p99": 39.0},
    "request_latency": {"unit": "ms", "p50": 200.0, "p99": 239.2},
    "input_config": {
        "models": {"items": [{"name": "org/m"}]},
        "phases": [{"name": "warmup", "exclude_from_results": True, "requests": 1},
                   {"name": "profiling", "type": "concurrency", "requests": 4, "concurrency": 2}],
    },
    "was_cancelled": False, "start_time": "2026-07-03T04:23:09.561350",
}  # fmt: skip


def test_aiperf_from_its_records(tmp_path: Path) -> None:
    (run,) = read(tmp_path / "profile_export.jsonl", *RECORDS).runs
    shares(run.figures, {**BY_HAND, "itl_p50_ms": 20.0})
    assert (run.num_ok, run.num_failed) == (2, 1)
    assert run.started_utc == "2027-01-15T08:00:00Z"


def test_aiperf_from_its_summary(tmp_path: Path) -> None:
    session = read(tmp_path / "profile_export_aiperf.json", SUMMARY)
    (run,) = session.runs
    assert run.figures == pytest.approx(
        {
            "output_tokens_per_s": 2.8, "requests_per_s": 0.8, "ttft_mean_ms": 150.0,
            "ttft_p50_ms": 150.0, "ttft_p95_ms": 195.0, "ttft_p99_ms": 199.0,
            "tpot_p99_ms": 20.0, "e2e_p50_ms": 200.0, "e2e_p99_ms": 239.2,
        }
    )  # fmt: skip
    assert (run.num_ok, run.num_failed) == (2, 2)
    assert run.started_utc == "2026-07-03T04:23:09Z"
    assert session.subject.model == "org/m"
    wanted = {"concurrency": 2, "num_prompts": 4}
    assert wanted.items() <= session.subject.workload.items()


def test_aiperf_records_belong_to_the_summary_beside_them(tmp_path: Path) -> None:
    folder = tmp_path / "artifacts"
    read(folder / "profile_export.jsonl", *RECORDS)
    session = read(folder / "profile_export_aiperf.json", SUMMARY)
    (run,) = session.runs
    assert run.figures["output_tokens_per_s"] == 2.8  # AIPerf's own duration
    assert run.figures["itl_p50_ms"] == pytest.approx(20.0)  # which records alone tell
    assert (run.num_ok, run.num_failed) == (2, 1)


def test_aiperf_in_earlier_versions(tmp_path: Path) -> None:
    config = {"endpoint": {"model_names": ["org/m"]},
              "loadgen": {"request_rate": 5.0, "concurrency": 2, "request_count": 4}}  # fmt: skip
    subject = read(tmp_path / "a.json", {**SUMMARY, "input_config": config}).subject
    assert subject.model == "org/m"
    assert subject.workload == {"request_rate": 5.0, "concurrency": 2, "num_prompts": 4}


WHOLE = {"vllm": vllm(**ARRAYS), "sglang": sglang(), "guidellm": guidellm(),
         "aiperf summary": SUMMARY, "aiperf record": RECORDS[0]}  # fmt: skip


def broken(document: Any) -> Iterator[Any]:
    """The document with each part of it, at any depth, made into something else, or left out."""

    def places(part: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        inside = part.items() if isinstance(part, dict) else \
            enumerate(part) if isinstance(part, list) else ()  # fmt: skip
        for key, value in inside:
            yield (*at, key)
            yield from places(value, (*at, key))

    for *above, key in places(document):
        for junk in (None, "x", -1, math.inf, math.nan, [], {"a": 1}, 10**400, "left out"):
            copy = deepcopy(document)
            part = copy
            for one in above:
                part = part[one]
            part[key] = junk
            if junk == "left out":
                del part[key]
            yield copy


@pytest.mark.parametrize("document", WHOLE.values(), ids=WHOLE)
def test_whatever_is_wrong_is_one_line_or_no_figure(tmp_path: Path, document: Any) -> None:
    path = tmp_path / "r.json"
    for one in broken(document):
        path.write_text(json.dumps(one))
        try:
            session = read_results(path)
        except DstuneError as error:
            assert "\n" not in str(error)
        else:
            for run in session.runs:
                assert run.num_ok >= 0 and run.num_failed >= 0
                assert all(map(math.isfinite, run.figures.values()))
