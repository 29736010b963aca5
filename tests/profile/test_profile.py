"""Profiles: what is accepted, and that every refusal names file, line and key on one line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstune.errors import ProfileError
from dstune.profile.durations import parse_duration
from dstune.profile.load import dump_profile, load_profile, parse_profile, restore_profile
from dstune.profile.model import Objective, Scenario

GOOD = """\
# Which configuration answers live chat within 200 ms at the 99th percentile?
name: realtime-chat
scenario: low_latency
workload:
  prompt_tokens: {distribution: lognormal, median: 96, sigma: 0.6, max: 384}
  output_tokens: 64
  anomalies: 0.05
arrivals: {kind: poisson, rate_per_s: 8}
slo: {ttft_p99_ms: 200, tpot_p99.9_ms: 50, success_rate: 0.999}
knobs: {max_model_len: 512}
search:
  max_num_seqs: [1, 4, 8, 16]
  precision: [bf16, int8]
presets:
  - {max_num_seqs: 4, max_model_len: null}
budget: {trials: 24, wall: 10m, repetitions: 3}
"""
MINIMAL = "name: x\nworkload: {prompt_tokens: 8, output_tokens: 4}\n"


def refused(text: str, *overrides: str) -> list[str]:
    with pytest.raises(ProfileError) as caught:
        parse_profile("p.yaml", text, overrides)
    return str(caught.value).split("\n")


def test_a_full_profile_is_read() -> None:
    profile = parse_profile("p.yaml", GOOD)
    assert profile.scenario is Scenario.LOW_LATENCY
    assert profile.aim is Objective.GOODPUT_LATENCY
    assert profile.workload.longest_request_tokens == 384 + 64
    assert [(one.metric, one.percentile, one.limit_ms) for one in profile.slo.limits] == [
        ("ttft", 99, 200),
        ("tpot", 99.9, 50),
    ]
    assert profile.search["precision"] == ("bf16", "int8")
    assert profile.budget.wall == 600


def test_everything_but_name_and_workload_has_a_default() -> None:
    profile = parse_profile("p.yaml", MINIMAL)
    assert (profile.model, profile.target, profile.driver) == (
        "tiny-deepseek",
        "embedded",
        "http",
    )
    assert refused("name: x") == ["p.yaml:1: workload: is missing"]


@pytest.mark.parametrize("text", [GOOD, MINIMAL])
def test_a_resolved_profile_goes_through_json_and_back(text: str) -> None:
    profile = parse_profile("p.yaml", text)
    assert restore_profile(json.loads(json.dumps(dump_profile(profile)))) == profile


def test_overrides_win_and_may_add_keys() -> None:
    profile = parse_profile(
        "p.yaml",
        GOOD,
        ["search.block_size=[16, 32]", "budget.wall=90s", "workload.prompt_tokens=32",
         "slo={}", "name=other"],
    )  # fmt: skip
    assert profile.search["block_size"] == (16, 32)
    assert profile.budget.wall == 90
    assert profile.workload.prompt_tokens.longest == 32
    assert profile.slo.limits == ()
    assert profile.name == "other"


def test_vllm_burstiness_becomes_a_coefficient_of_variation() -> None:
    profile = parse_profile(
        "p.yaml", MINIMAL + "arrivals: {kind: gamma, rate_per_s: 2, burstiness: 0.25}\n"
    )
    assert profile.arrivals.cv == pytest.approx(2.0)


WRONG = {
    "empty": ("", "p.yaml: the profile is empty; it needs at least name and workload"),
    "comment only": ("# x\n", "p.yaml: the profile is empty; it needs at least name and workload"),
    "a list": ("- 1\n", "p.yaml:1: a profile is a mapping of keys to values"),
    "not yaml": ("name: x\nb: [1\n", "p.yaml:3: not valid YAML: expected ',' or ']'"),
    "control character": ("name: \x01", "p.yaml: not valid YAML: special characters"),
    "self reference": (MINIMAL + "search: &a [*a]\n", "p.yaml:3: search.0: refers to itself"),
    "python object": (MINIMAL + "model: !!python/name:os.system\n", "p.yaml:3: model: cannot be"),
    "key not text": (MINIMAL + "1: 2\n", "p.yaml:3: a key must be text, not 1"),
    "duplicate": (MINIMAL + "name: y\n", "p.yaml:3: name: stands here a second time, first on li"),
    "unknown top": (MINIMAL + "serach: {}\n", "p.yaml:3: serach: unknown key; did you mean 'searc"),
    "unknown deep": (
        "name: x\nworkload:\n  prompt_tokens: 8\n  output_tokens:\n    distribution: constant\n"
        "    valeu: 3\n    value: 3\n",
        "p.yaml:6: workload.output_tokens.valeu: unknown key; did you mean 'value'?",
    ),
    "wrong section": (MINIMAL + "rate_per_s: 3\n", "did you mean 'arrivals.rate_per_s'?"),
    "knob at top": (MINIMAL + "block_size: 16\n", "did you mean 'knobs.block_size'?"),
    "nan": (MINIMAL + "arrivals: {kind: poisson, rate_per_s: .nan}\n", "p.yaml:3: arrivals.rate_p"),
    "negative": (MINIMAL + "arrivals: {kind: poisson, rate_per_s: -1}\n", "must be above 0, not"),
    "bool as number": (MINIMAL + "arrivals: {kind: poisson, rate_per_s: yes}\n", "must be a numbe"),
    "arrivals incomplete": (MINIMAL + "arrivals: {kind: gamma, rate_per_s: 1}\n", "needs 'cv'"),
    "arrivals too much": (
        MINIMAL + "arrivals:\n  kind: poisson\n  rate_per_s: 1\n  concurrency: 3\n",
        "p.yaml:6: arrivals.concurrency: has no meaning for kind poisson",
    ),
    "ramp incomplete": (
        MINIMAL + "arrivals: {kind: ramp, rate_per_s: 2}\n", "needs 'end_rate_per_s'"
    ),
    "step empty": (MINIMAL + "arrivals: {kind: step, rates_per_s: []}\n", "arrivals.rates_per_s: "),
    "step negative": (
        MINIMAL + "arrivals:\n  kind: step\n  rates_per_s:\n  - 1\n  - -2\n",
        "p.yaml:7: arrivals.rates_per_s.1: must be above 0, not -2",
    ),
    "step not a list": (MINIMAL + "arrivals: {kind: step, rates_per_s: 3}\n", "must be a list"),
    "end of a constant rate": (
        MINIMAL + "arrivals:\n  kind: constant\n  rate_per_s: 1\n  end_rate_per_s: 3\n",
        "p.yaml:6: arrivals.end_rate_per_s: has no meaning for kind constant",
    ),
    "speed of no trace": (MINIMAL + "arrivals: {kind: poisson, rate_per_s: 1, speed: 2}\n",
                          "p.yaml:3: arrivals.speed: has no meaning for kind poisson"),
    "duration": (MINIMAL + "arrivals: {kind: poisson, rate_per_s: 1, duration: soon}\n",
                 "p.yaml:3: arrivals.duration: must be a time such as"),
    "duration of all at once": (MINIMAL + "arrivals: {duration: 5m}\n",
                                "p.yaml:3: arrivals.duration: has no meaning when all arrive"),
    "duration and number": (
        "name: x\nworkload:\n  {prompt_tokens: 8, output_tokens: 4,\n  num_requests: 7}\n"
        "arrivals: {kind: poisson, rate_per_s: 2, duration: 5s}\n",
        "p.yaml:4: workload.num_requests: is 7, but the rate makes 10 in arrivals.duration",
    ),
    "too many": (MINIMAL + "arrivals: {kind: poisson, rate_per_s: 1000, duration: 9h}\n",
                 "p.yaml:3: arrivals.duration: makes 32,400,000 requests, 16,777,216 at most"),
    "lengths of a trace": (
        "name: x\nworkload: {prompt_tokens: {distribution: trace}, output_tokens: 4}\n",
        "p.yaml:2: workload.prompt_tokens: needs arrivals of kind trace",
    ),
    "turns of a trace": (MINIMAL.replace("4}", "4, turns: {distribution: trace}}"),
                         "p.yaml:2: workload.turns: the rows of a trace have no turns"),
    "no turn": (MINIMAL.replace("4}", "4, turns: 0}"), "2: workload.turns: must be at least 1"),
    "thinking alone": (MINIMAL.replace("4}", "4, think_time_s: 1}"),
                       "p.yaml:2: workload.think_time_s: has a meaning only beside turns above 1"),
    "sessions too long": (
        MINIMAL.replace("4}", "4, turns: 3, shared_prefix_tokens: 5}")
        + "knobs: {max_model_len: 40}\n",
        "p.yaml:3: knobs.max_model_len: is 40, but the longest request takes 41 tokens "
        "(5 shared + 3 turns of 8 prompt + 4 output)",
    ),
    "scenario typo": (MINIMAL + "scenario: low-latency\n", "did you mean 'low_latency'?"),
    "slo typo": (MINIMAL + "slo: {ttft_99_ms: 3}\n", "p.yaml:3: slo.ttft_99_ms: unknown key; did "),
    "slo text": (MINIMAL + "slo: {ttft_p99_ms: fast}\n", "must be a number of milliseconds"),
    "unknown knob": (MINIMAL + "knobs: {max_batch_size: 3}\n", "is called 'max_num_seqs' here"),
    "illegal value": (MINIMAL + "search:\n  block_size: [16, 17]\n", "p.yaml:4: search.block_size"),
    "infinite knob": (MINIMAL + "knobs: {max_num_seqs: .inf}\n", "must be a finite number"),
    "search not a list": (MINIMAL + "search: {max_num_seqs: 4}\n", "must be a list of values"),
    "search twice": (MINIMAL + "search: {max_num_seqs: [4, 4]}\n", "lists a value twice"),
    "fixed and searched": (
        MINIMAL + "knobs: {max_num_seqs: 4}\nsearch: {max_num_seqs: [4]}\n",
        "p.yaml:4: search.max_num_seqs: is fixed under knobs",
    ),
    "preset": (MINIMAL + "presets:\n  - {precision: in8}\n", "p.yaml:4: presets.0.precision"),
    "too long": (
        MINIMAL + "knobs: {max_model_len: 11}\n",
        "p.yaml:3: knobs.max_model_len: is 11, but the longest request takes 12 tokens "
        "(8 prompt + 4 output)",
    ),
    "lognormal without max": (
        "name: x\nworkload:\n  prompt_tokens: {distribution: lognormal, median: 3, sigma: 1}\n"
        "  output_tokens: 4\n",
        "p.yaml:3: workload.prompt_tokens: distribution lognormal needs 'max'",
    ),
    "wall": (MINIMAL + "budget: {wall: soon}\n", "p.yaml:3: budget.wall: must be a time such as"),
    "name": ("name: ../x\n" + MINIMAL[8:], "p.yaml:1: name: must be a short name"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "start"), WRONG.values(), ids=WRONG.keys())
def test_each_wrong_profile_is_one_clear_line(text: str, start: str) -> None:
    lines = refused(text)
    assert len(lines) == 1
    assert start in lines[0]
    assert lines[0].startswith("p.yaml")


def test_several_errors_are_all_listed() -> None:
    lines = refused(
        "name: 3\nworkload:\n  prompt_tokens: 0\n  output_tokens: 4\n  sed: 1\n"
        "knobs: {blok_size: 16, max_num_seqs: 0}\nsearch: {precision: [fp7, fp9]}\n"
        "slo: {a: 1, ttft_p99_ms: -1}\n"
    )
    keys = [line.split(": ")[1] for line in lines]
    assert set(keys) == {
        "name", "workload.prompt_tokens", "workload.sed", "knobs.blok_size", "knobs.max_num_seqs",
        "search.precision.0", "search.precision.1", "slo.a", "slo.ttft_p99_ms",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("override", "start"),
    [
        ("knobs.block_size=17", "--set knobs.block_size=17: knobs.block_size: "),
        ("nonsense", "--set nonsense: must look like a.b=value"),
        ("=3", "--set =3: must look like"),
        ("name.deep=3", "--set name.deep=3: name is 'realtime-chat', which has no keys inside"),
        ("slo.ttft_p99_ms=[", "--set slo.ttft_p99_ms=[: the value is not valid YAML"),
        ("presets=[{block_size: 3}]", "--set presets=[{block_size: 3}]: presets.0.block_size: "),
        ("max_num_seqs=3", "--set max_num_seqs=3: max_num_seqs: unknown key; did you mean 'knobs."),
        ("workload.num_requests=1e3", "--set workload.num_requests=1e3: workload.num_requests: "),
    ],
)
def test_errors_of_an_override_name_it(override: str, start: str) -> None:
    lines = refused(GOOD, override)
    assert len(lines) == 1 and lines[0].startswith(start)


def test_missing_files_are_one_line(tmp_path: Path) -> None:
    for path, message in [
        (tmp_path / "none.yaml", "no such profile"),
        (tmp_path, "is a folder, not a profile"),
    ]:
        with pytest.raises(ProfileError, match=message):
            load_profile(path)
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9\xff")
    with pytest.raises(ProfileError, match="not UTF-8"):
        load_profile(tmp_path / "latin.yaml")
    (tmp_path / "real.yaml").write_text(MINIMAL)
    with pytest.raises(ProfileError, match=r"did you mean .*real\.yaml"):
        load_profile(tmp_path / "real")


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(ProfileError, match="no regular file"):
        load_profile(tmp_path / "pipe.yaml")


@pytest.mark.parametrize("text", ["a: " + "[" * 3000, "a: " + "[" * 3000 + "]" * 3000])
def test_deep_nesting_is_one_line(text: str) -> None:
    with pytest.raises(ProfileError, match="nested too deeply"):
        parse_profile("p.yaml", text)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("search.max_num_seqs=[]", "lists no value to try"),
        ("slo.ttft_p99_ms=.inf", "above 0 and below 1e9 ms, not inf"),
        ("arrivals.rate_per_s=1e9", r"such as 1\.0e\+9"),
        ("budget.trials=x", "must be a whole number, not 'x'"),
    ],
)
def test_a_value_of_the_wrong_kind_names_what_is_expected(override: str, message: str) -> None:
    with pytest.raises(ProfileError, match=message) as wrong:
        parse_profile("p.yaml", MINIMAL, [override])
    assert "\n" not in str(wrong.value)


def test_an_unknown_target_is_refused_with_its_line() -> None:
    with pytest.raises(ProfileError, match=r"p\.yaml:.*target: must be embedded, vllm, sglang or"):
        parse_profile("p.yaml", MINIMAL + "target: embeded\n")


@given(st.text(max_size=200))
def test_no_text_at_all_raises_anything_but_a_profile_error(text: str) -> None:
    try:
        parse_profile("p.yaml", text)
    except ProfileError as error:
        assert str(error)


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner,
                                                                max_size=3),
    max_leaves=6,
), st.sampled_from(["workload", "arrivals", "slo", "knobs", "search", "presets", "budget", "name",
                    "objective"]))  # fmt: skip
def test_no_value_at_all_raises_anything_but_a_profile_error(value: object, key: str) -> None:
    try:
        parse_profile("p.yaml", MINIMAL, [f"{key}={json.dumps(value)}"])
    except ProfileError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1h30m", 5400), (45, 45), ("1.5m", 90)]
)
def test_durations(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "-3s", 0, True, None, float("nan"), "1s1m"])
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)
