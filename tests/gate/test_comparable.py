"""What forbids a comparison, what is only noted, and what a re-run needs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from measured import ENVIRONMENT, profile

from dstune.errors import ExitCode, NotComparable, UsageError
from dstune.gate.comparable import (
    check_comparable,
    check_reproducible,
    check_runs,
    check_trusted,
    host_digest,
)
from dstune.gate.sessions import Origin, workload_of
from dstune.knobs import complete
from dstune.measure.comparison import RunFigures, Session, Subject
from dstune.measure.record import Remark, RemarkCode

H200 = "NVIDIA H200, 143771 MiB, 570.86"


def environment(**changes: Any) -> dict[str, Any]:
    """The usual one, with keys replaced; `cpu__model` stands for cpu.model."""
    made = copy.deepcopy(ENVIRONMENT)
    for key, value in changes.items():
        outer, _, inner = key.partition("__")
        if inner:
            made[outer][inner] = value
        else:
            made[outer] = value
    return made


def subject(**changes: Any) -> Subject:
    usual: dict[str, Any] = {
        "tool": "dstune", "model": "m", "model_digest": "a" * 64, "precision": "bf16",
        "kv_cache_dtype": "bf16", "workload": workload_of(profile(), has_hostile=False),
        "knobs": complete({}), "environment": environment(),
    }  # fmt: skip
    return Subject(**{**usual, **changes})


def session(*runs: RunFigures) -> Session:
    return Session(name="s", source="reports/s", started_utc="", subject=subject(), runs=runs)


def run(name: str, num_ok: int, num_failed: int = 0, *codes: RemarkCode) -> RunFigures:
    remarks = tuple(Remark(code=one, message="so it is") for one in codes)
    return RunFigures(name=name, started_utc="", num_ok=num_ok, num_failed=num_failed, figures={},
                      remarks=remarks)  # fmt: skip


def test_the_same_thing_is_comparable_without_a_note() -> None:
    assert check_comparable(subject(), subject()) == ()


def load(*overrides: str) -> dict[str, Any]:
    return {"workload": workload_of(profile(*overrides), has_hostile=False)}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tool": "vllm bench serve"}, "tool dstune / vllm bench serve"),
        ({"model": "n", "model_digest": None}, "model m / n"),
        ({"model": "n", "model_digest": "b" * 64},
         "model m / n; model digest aaaaaaaaaaaa / bbbbbbbbbbbb"),
        ({"model_digest": "b" * 64}, "model digest aaaaaaaaaaaa / bbbbbbbbbbbb"),
        ({"precision": "int8"}, "precision bf16 / int8"),
        ({"kv_cache_dtype": "fp8"}, "KV dtype bf16 / fp8"),
        (load("workload.output_tokens=9"), "workload.output_tokens.value 8 / 9"),
        (load("arrivals.rate_per_s=21"), "workload.arrivals.rate_per_s 20.0 / 21.0"),
        (load("driver=offline"), "workload.driver http / offline"),
        (load("arrivals={kind: concurrency, concurrency: 4}"),
         "workload.arrivals.kind poisson / concurrency"),
        (load("workload.prompt_tokens={distribution: uniform, min: 1, max: 9}"),
         "workload.prompt_tokens.distribution constant / uniform"),
        (load("arrivals={kind: poisson, rate_per_s: 20, duration: 3s}",
              "workload={prompt_tokens: 20, output_tokens: 8, anomalies: 0.0}"),
         "workload.num_requests 12 / 60; workload.arrivals.duration none / 3.0"),
        ({"environment": environment(gpus=[H200])}, "GPU none / NVIDIA H200"),
        ({"environment": environment(cpu__model="Other")}, "CPU Fake 9000 / Other"),
        ({"environment": environment(cpu__flags_digest="beef")}, "CPU features f00d / beef"),
        ({"environment": environment(cpu__usable_cores=1)}, "usable cores 2 / 1"),
        ({"environment": environment(cpu__cores=8)}, "cores 4 / 8"),
        ({"environment": environment(versions={"torch": "2.14.0", "triton": "3.9.0"})},
         "version of torch 2.13.0 / 2.14.0"),
    ],
)  # fmt: skip
def test_what_differs_forbids_it_in_one_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(NotComparable) as caught:
        check_comparable(subject(), subject(**changes))
    assert str(caught.value) == (
        f"not comparable (baseline / candidate): {said}; measure both alike"
    )
    assert caught.value.exit_code is ExitCode.NOT_COMPARABLE


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ([H200], [H200, H200], "GPU NVIDIA H200 / 2 x NVIDIA H200"),
        ([H200], ["NVIDIA L4, 23034 MiB, 570.86"], "GPU NVIDIA H200 / NVIDIA L4"),
        ([H200], ["NVIDIA H200, 71000 MiB, 570.86"], "GPU memory 143771 MiB / 71000 MiB"),
        ([H200], ["NVIDIA H200, 143771 MiB, 580.1"], "GPU driver 570.86 / 580.1"),
    ],
)
def test_gpus_by_name_number_memory_and_driver(
    before: list[str], after: list[str], said: str
) -> None:
    sides = [subject(environment=environment(gpus=one)) for one in (before, after)]
    assert check_comparable(sides[0], sides[0]) == ()
    with pytest.raises(NotComparable) as caught:
        check_comparable(*sides)
    assert f"(baseline / candidate): {said};" in str(caught.value)


def test_every_difference_is_listed() -> None:
    other = subject(precision="int8", environment=environment(gpus=[H200]),
                    **load("workload.num_requests=13"))  # fmt: skip
    with pytest.raises(NotComparable) as caught:
        check_comparable(subject(), other)
    for said in ("precision", "workload.num_requests 12 / 13", "GPU none / NVIDIA H200"):
        assert said in str(caught.value)


def test_long_values_are_cut() -> None:
    loads = [load("arrivals={kind: step, rates_per_s: [" + ", ".join([one] * 30) + "]}")
             for one in ("11.125", "11.25")]  # fmt: skip
    with pytest.raises(NotComparable) as caught:
        check_comparable(*(subject(**one) for one in loads))
    assert str(caught.value) == (
        "not comparable (baseline / candidate): workload.arrivals.rates_per_s "
        f"[{'11.125, ' * 7}... / [{'11.25, ' * 8}...; measure both alike"
    )


def test_another_version_of_dstune_is_what_a_gate_is_for() -> None:
    newer = environment(versions={**ENVIRONMENT["versions"], "dstune": "0.2.0"},
                        git_revision="2222222222222222+")  # fmt: skip
    assert check_comparable(subject(), subject(environment=newer)) == (
        "code dstune 0.1.0 at 111111111111 / dstune 0.2.0 at 222222222222",
    )


def test_another_seed_draws_other_prompts_of_the_same_load() -> None:
    notes = check_comparable(subject(), subject(**load("workload.seed=7")))
    assert notes == ("workload.seed 0 / 7",)


def test_the_same_weights_elsewhere_are_the_same_model() -> None:
    assert check_comparable(subject(), subject(model="/models/m")) == ("model m / /models/m",)


def test_system_and_python_are_noted() -> None:
    other = environment(os="Linux 6.2", python="3.12.1")
    assert check_comparable(subject(), subject(environment=other)) == (
        "Python 3.11.7 / 3.12.1",
        "system Linux 6.1 / Linux 6.2",
    )


def test_what_one_source_does_not_tell_is_noted() -> None:
    bare = Subject(tool="dstune", model="m")
    assert check_comparable(subject(), bare) == (
        "code dstune 0.1.0 at 111111111111 / unknown",
        "the candidate does not tell its model digest, precision, KV dtype, workload, environment: "
        "taken to be equal",
    )
    (_, noted) = check_comparable(bare, subject())
    assert noted.startswith("the baseline does not tell its model digest, precision")
    assert check_comparable(bare, bare) == ()


def test_parts_that_one_source_does_not_tell_are_noted() -> None:
    part = environment(gpus=None, versions={"dstune": "0.1.0", "torch": "2.13.0", "vllm": "1.0"})
    del part["cpu"]["cores"]
    work = subject().workload
    fewer = {**work, "workload": {k: v for k, v in work["workload"].items() if k != "turns"}}
    assert check_comparable(subject(), subject(environment=part, workload=fewer)) == (
        "the candidate does not tell its workload.turns, GPU, cores, version of triton: taken to "
        "be equal",
        "the baseline does not tell its version of vllm: taken to be equal",
    )


def test_imported_loads_by_the_keys_that_both_tell() -> None:
    mine = Subject(tool="t", model="m", workload={"num_prompts": 5, "rate": "inf"})
    theirs = Subject(tool="t", model="m", workload={"num_prompts": 6, "burstiness": 1.0})
    with pytest.raises(NotComparable, match=r"candidate\): workload.num_prompts 5 / 6; measure"):
        check_comparable(mine, theirs)


def test_failed_requests_are_not_comparable() -> None:
    check_runs(session(run("a", 60), run("b", 60)))
    with pytest.raises(NotComparable) as caught:
        check_runs(session(run("a", 60), run("b", 57, 3)))
    assert str(caught.value) == (
        "3 of 120 requests of s failed (in b): not comparable; find out why, then measure again"
    )


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ((run("a", 0, 60), run("b", 0, 60)), "all 120 requests of s failed: not comparable"),
        ((run("a", 0),), "no request of s was answered: not comparable"),
        ((run("a", 5), run("b", 0)), "no request was answered in b of s: not comparable"),
    ],
)
def test_runs_without_an_answer(runs: tuple[RunFigures, ...], said: str) -> None:
    with pytest.raises(NotComparable, match=said):
        check_runs(session(*runs))


def test_no_run_at_all() -> None:
    with pytest.raises(UsageError, match="reports/s holds no run: there is nothing to compare"):
        check_runs(session())


def test_what_voids_figures_is_told_once() -> None:
    harmless = run("a", 5, 0, RemarkCode.BUSY_HOST, RemarkCode.TOO_FEW_SAMPLES)
    check_trusted(session(harmless))
    lagging = [run(name, 5, 0, RemarkCode.CLIENT_LAG) for name in "bc"]
    with pytest.raises(NotComparable) as caught:
        check_trusted(session(harmless, *lagging))
    assert str(caught.value) == "s cannot be trusted (client_lag: so it is): measure it again"


def origin(known: dict[str, Any]) -> Origin:
    return Origin("r", "reports/r", profile(), complete({}), known, None)


def test_a_rerun_wants_the_same_machine() -> None:
    assert check_reproducible(origin(ENVIRONMENT), environment()) == ()
    with pytest.raises(NotComparable) as caught:
        check_reproducible(origin(ENVIRONMENT), environment(gpus=[H200], cpu__usable_cores=16))
    assert str(caught.value) == (
        "r was measured on another machine (then / now): GPU none / NVIDIA H200; usable cores "
        "2 / 16: run the gate on that machine, or measure a baseline on this one"
    )


def test_a_rerun_runs_on_what_is_installed_now() -> None:
    then = environment(gpus=[H200])
    versions = {"dstune": "0.2.0", "torch": "2.14.0", "triton": "3.9.0"}
    gpus = [H200.replace("570.86", "580.1")]
    now = environment(gpus=gpus, git_revision="3", versions=versions)
    assert check_reproducible(origin(then), now) == (
        "since r (then / now): GPU driver 570.86 / 580.1",
        "since r (then / now): version of torch 2.13.0 / 2.14.0",
    )
    assert check_reproducible(origin({}), now) == (), "a profile was measured nowhere"
    assert check_reproducible(origin({"cpu": {"model": "Fake 9000"}}), environment()) == (
        "r does not tell all of its environment: taken to be equal",
    )


def test_a_machine_is_the_same_whatever_is_installed(tmp_path: Path) -> None:
    base = host_digest(environment(gpus=[H200]))
    assert host_digest(environment(gpus=[H200], versions={}, git_revision=None)) == base
    assert host_digest(environment(gpus=[H200.replace("570.86", "580.1")])) == base
    for other in (environment(), environment(gpus=[H200], cpu__cores=1), {}):
        assert host_digest(other) != base
