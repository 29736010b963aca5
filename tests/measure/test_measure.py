"""Samples through parquet, the run folder under kills, the fingerprint, the busy host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from samples import sample

from dstune.errors import DstuneError, UsageError
from dstune.measure.files import append_line, whole_lines
from dstune.measure.fingerprint import differences, fingerprint
from dstune.measure.host import CpuReading, host_load, is_busy, read_cpu
from dstune.measure.parquet import (
    read_samples,
    read_steps,
    write_samples,
    write_steps,
)
from dstune.measure.record import Run, TrialRecord
from dstune.measure.run_folder import RunFolder
from dstune.measure.sample import Status, StepSample

COLUMNS = """
request_id trial_id repetition process session_id turn kind status error http_status intended_ns
sent_ns first_token_ns last_token_ns done_ns chunk_offsets_ns chunk_tokens prompt_tokens
output_tokens token_source cached_tokens queue_ns precision backend
"""
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def trial(trial_id: str = "t000") -> TrialRecord:
    return TrialRecord(trial_id=trial_id, phase="search", origin="grid", status="infeasible",
                       knobs={"block_size": 16}, changed={})  # fmt: skip


def run() -> Run:
    return Run(verb="sweep", status="running", argv=["sweep", "x.yaml"], started_utc="now",
               wall_clock_zero_ns=0, profile={"name": "x"}, environment={})  # fmt: skip


def test_samples_go_through_parquet_and_back(tmp_path: Path) -> None:
    path = tmp_path / "requests.parquet"
    samples = [sample(tokens_ms=[1, 2, 3]), sample(status=Status.FAILED)]
    write_samples(path, samples)
    assert read_samples(path) == samples
    schema = pq.read_schema(path)
    assert schema.names == COLUMNS.split()
    assert str(schema.field("chunk_offsets_ns").type).startswith("list<")
    assert os.listdir(tmp_path) == ["requests.parquet"]


def test_an_empty_file_of_samples_keeps_its_columns(tmp_path: Path) -> None:
    write_samples(tmp_path / "r.parquet", [])
    assert read_samples(tmp_path / "r.parquet") == []
    assert pq.read_schema(tmp_path / "r.parquet").names == COLUMNS.split()


def test_steps_go_through_parquet_and_back(tmp_path: Path) -> None:
    steps = [StepSample("t", 0, 1 << 60, 5, 1, 2, 3, 4, 5, 6, 7)]
    write_steps(tmp_path / "s.parquet", steps)
    assert read_steps(tmp_path / "s.parquet") == steps


def test_a_damaged_file_of_samples_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "r.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(DstuneError, match=r"cannot read the samples in .*r\.parquet") as caught:
        read_samples(tmp_path / "r.parquet")
    assert "\n" not in str(caught.value)


def test_a_torn_last_line_is_ignored_and_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    append_line(path, "one")
    append_line(path, "two")
    with open(path, "ab") as file:
        file.write(b'{"torn": "\xc3')  # half a character, too
    assert whole_lines(path) == ["one", "two"]
    append_line(path, "three")
    assert path.read_bytes() == b"one\ntwo\nthree\n"


def test_a_run_folder_remembers_its_run_and_trials(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "sweep", "x", NOW)
    assert folder.path.name == "20260102T030405Z-sweep-x"
    assert RunFolder.create(tmp_path, "sweep", "x", NOW).path.name.endswith("-sweep-x-2")
    folder.write_run(run())
    folder.append_trial(trial("t000"))
    folder.append_trial(trial("t001"))
    found = RunFolder.find(folder.path.name, tmp_path)
    assert found.read_run() == run()
    assert [one.trial_id for one in found.trials()] == ["t000", "t001"]
    assert json.loads((folder.path / "run.json").read_text())["schema_version"] == 1


def test_what_a_killed_writer_left_is_cleaned(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "sweep", "x")
    folder.write_run(run())
    folder.trial_folder("t1").mkdir(parents=True)
    (folder.trial_folder("t1") / ".requests.parquet.99.tmp").write_text("half")
    folder.clean()
    assert sorted(one.name for one in folder.path.rglob("*")) == ["run.json", "t1", "trials"]


def test_damage_in_the_middle_is_an_error_with_its_line(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "sweep", "x")
    append_line(folder.path / "trials.jsonl", '{"half": ')
    folder.append_trial(trial())
    with pytest.raises(DstuneError, match=r"trials\.jsonl:1 is damaged"):
        folder.trials()


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run called nothing"):
        RunFolder.find("nothing", tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(DstuneError, match="verb: Field required"):
        RunFolder.find(str(tmp_path), tmp_path).read_run()
    with pytest.raises(UsageError, match="cannot write below"):
        RunFolder.create(tmp_path / "run.json", "sweep", "x")


def test_only_one_process_writes_a_run_and_a_dead_one_frees_it(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "sweep", "x")
    program = (
        "import sys, pathlib; from dstune.measure.run_folder import RunFolder\n"
        "with RunFolder(pathlib.Path(sys.argv[1])).locked():\n"
        "    print('locked', flush=True); sys.stdin.read()\n"
    )
    assert not folder.is_locked()
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(folder.path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert child.stdout is not None and child.stdin is not None
    assert child.stdout.readline() == "locked\n"
    assert folder.is_locked()
    with pytest.raises(UsageError, match="is being written by another dstune"), folder.locked():
        pass
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()
    with folder.locked():
        pass
    assert not folder.is_locked()


def test_the_fingerprint_says_what_figures_depend_on() -> None:
    found = fingerprint()
    json.dumps(found)
    assert found["cpu"]["model"] and found["cpu"]["cores"] >= 1
    assert {"dstune", "numpy"} <= set(found["versions"])
    assert differences(found, json.loads(json.dumps(found))) == []
    other = {**found, "cpu": {**found["cpu"], "model": "another"}}
    assert len(differences(found, other)) == 1 and "cpu.model" in differences(found, other)[0]


def test_the_fingerprint_imports_nothing_heavy() -> None:
    program = (
        "import sys; from dstune.measure.fingerprint import fingerprint; fingerprint()\n"
        "assert not {'torch', 'numpy', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])


def test_foreign_work_and_steal_are_shares_of_all_cores() -> None:
    before = CpuReading(wall_s=0, busy_s=100, steal_s=5, own_s=10, num_cores=2)
    after = CpuReading(wall_s=10, busy_s=116, steal_s=5.5, own_s=22, num_cores=2)
    load = host_load(before, after)  # 20 core-seconds: 12 ours, 4 others', 0.5 stolen
    assert load.own_cpu_share == pytest.approx(0.6)
    assert load.foreign_cpu_share == pytest.approx(0.2)
    assert load.steal_share == pytest.approx(0.025)
    assert is_busy(load)
    quiet = CpuReading(wall_s=10, busy_s=112.5, steal_s=5, own_s=22, num_cores=2)
    assert not is_busy(host_load(before, quiet))


def test_own_work_includes_children() -> None:
    before = read_cpu()
    burn = "sum(range(20_000_000))"
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert read_cpu().own_s - before.own_s > 0.1
