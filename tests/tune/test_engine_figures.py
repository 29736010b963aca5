"""The bench hands the engine's steps and its number of blocks to the figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest
from fakes import TEXT, FakeTarget, Recorder

from dstune.knobs import KnobValue
from dstune.load.plan import LoadPlan
from dstune.measure.record import TrialRecord
from dstune.measure.run_folder import RunFolder
from dstune.measure.sample import StepSample
from dstune.profile.load import parse_profile
from dstune.target.target import Configured, LoadResult, Progress
from dstune.tune.bench import Setting
from dstune.tune.sweep import begin, sweep

PROFILE = """
name: chat
workload: {prompt_tokens: 20, output_tokens: 8, num_requests: 20}
search: {max_num_seqs: [2]}
budget: {repetitions: 2}
"""


class StepTarget(FakeTarget):
    """Tells two steps of every load: 40 and 20 of the blocks are free after them."""

    num_blocks: object = 80

    def configure(self, knobs: Mapping[str, KnobValue]) -> Configured:
        found = super().configure(knobs)
        return dataclasses.replace(found, model={**found.model, "num_blocks": self.num_blocks})

    def run(self, plan: LoadPlan, progress: Progress | None = None) -> LoadResult:
        steps = tuple(
            StepSample(
                trial_id="", repetition=0, start_ns=0, duration_ns=1, num_prefill_tokens=0,
                num_decode_tokens=2, num_running=2, num_waiting=0, num_free_blocks=free,
                num_preempted=1, num_cached_tokens=0,
            )
            for free in (40, 20)
        )  # fmt: skip
        return dataclasses.replace(super().run(plan, progress), steps=steps)


def first_trial(root: Path, target: StepTarget) -> TrialRecord:
    folder: RunFolder = begin(parse_profile("p.yaml", PROFILE), root, ["sweep", "p.yaml"], {})
    clock = target.clock
    sweep(folder, Setting(lambda _: target, Recorder(), lambda: TEXT, clock.now_ns, clock.read_cpu))
    return folder.trials()[0]


def test_a_trial_and_each_repetition_have_the_engines_figures(tmp_path: Path) -> None:
    trial = first_trial(tmp_path, StepTarget())
    assert trial.figures["kv_use_mean"].value == pytest.approx(0.625)
    assert trial.figures["kv_use_max"].value == 0.75
    assert trial.figures["num_preempted"].value == 4, "two steps in each of two repetitions"
    assert [one.figures["num_preempted"].value for one in trial.repetitions] == [2, 2]
    assert trial.repetitions[0].figures["kv_use_max"].value == 0.75


@pytest.mark.parametrize("told", [None, "80"])
def test_a_target_that_does_not_tell_its_blocks_has_no_use_of_them(
    tmp_path: Path, told: object
) -> None:
    target = StepTarget()
    target.num_blocks = told
    trial = first_trial(tmp_path, target)
    assert "kv_use_max" not in trial.figures and "batch_size_mean" in trial.figures
