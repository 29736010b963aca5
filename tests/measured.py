"""Run folders as the verbs leave them, measured on the fake target: for tests that read runs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fakes import TEXT, FakeClock, FakeTarget, Recorder

from dstune.knobs import KnobValue, complete
from dstune.measure.record import PlannedTrial
from dstune.measure.run_folder import RunFolder
from dstune.profile.load import parse_profile
from dstune.profile.model import Profile
from dstune.tune import loadtest, sweep
from dstune.tune.bench import Bench, Job, Setting

PROFILE = """
name: chat
scenario: low_latency
workload: {prompt_tokens: 20, output_tokens: 8, num_requests: 12, anomalies: 0.0}
arrivals: {kind: poisson, rate_per_s: 20}
slo: {ttft_p99_ms: 4000}
search: {max_num_seqs: [2, 8]}
budget: {repetitions: 2}
"""
ENVIRONMENT: dict[str, Any] = {
    "cpu": {"model": "Fake 9000", "flags_digest": "f00d", "cores": 4, "usable_cores": 2},
    "gpus": [],
    "os": "Linux 6.1",
    "python": "3.11.7",
    "versions": {"dstune": "0.1.0", "torch": "2.13.0", "triton": "3.9.0"},
    "git_revision": "1111111111111111",
}


def profile(*overrides: str) -> Profile:
    return parse_profile("p.yaml", PROFILE, overrides)


@dataclass
class Bank:
    """A root for run folders, and a target that fills them."""

    root: Path
    clock: FakeClock = field(default_factory=FakeClock)

    def setting(self, target: FakeTarget | None = None) -> Setting:
        one = target or FakeTarget(self.clock)
        return Setting(lambda _: one, Recorder(), lambda: TEXT, self.clock.now_ns,
                       self.clock.read_cpu)  # fmt: skip

    def sweep(
        self, one: Profile, target: FakeTarget | None = None, **environment: Any
    ) -> RunFolder:
        folder = sweep.begin(one, self.root, ["sweep", "p.yaml"], {**ENVIRONMENT, **environment})
        sweep.sweep(folder, self.setting(target))
        return folder

    def loadtest(
        self, one: Profile, target: FakeTarget | None = None, **environment: Any
    ) -> RunFolder:
        knobs = complete(one.knobs)
        folder = loadtest.begin(
            one, knobs, self.root, ["loadtest", "p.yaml"], {**ENVIRONMENT, **environment}
        )
        loadtest.loadtest(folder, self.setting(target))
        return folder

    def gate(
        self, one: Profile, trials: list[tuple[str, int | tuple[int, ...]]],
        target: FakeTarget | None = None,
    ) -> RunFolder:  # fmt: skip
        """A gate's trials, each with its repetitions, as far as they go without a verdict."""
        folder = loadtest.begin(one, complete(one.knobs), self.root, ["gate", "x"], ENVIRONMENT)
        moved = self.root / folder.path.name.replace("-loadtest-", "-gate-")
        folder.path.rename(moved)
        folder = RunFolder(moved)
        folder.write_run(folder.read_run().model_copy(update={"verb": "gate"}))
        bench = Bench(one, folder, self.setting(target))
        for trial_id, asked in trials:
            repetitions = asked if isinstance(asked, tuple) else (asked,)
            knobs: dict[str, KnobValue] = complete(one.knobs)
            planned = PlannedTrial(trial_id=trial_id, origin="default", knobs=knobs, changed={})
            folder.append_trial(bench.measure(Job(planned, trial_id, "gate", repetitions)))
        return folder


def rename(folder: RunFolder, name: str) -> RunFolder:
    """The same run under a name of its own: folders are named after the second."""
    path = folder.path.rename(folder.path.parent / name)
    return RunFolder(path)


def edit_run(folder: RunFolder, **changes: Any) -> None:
    """Changes keys of run.json in place, unchecked."""
    path = folder.path / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_trials(folder: RunFolder, change: Any) -> None:
    """Rewrites trials.jsonl, each record as `change` makes it."""
    trials = [change(one) for one in folder.trials()]
    text = "".join(one.model_dump_json() + "\n" for one in trials)
    (folder.path / "trials.jsonl").write_text(text)
