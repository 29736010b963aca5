"""A trace in a run folder and back; a damaged one is one clear line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from traces import Made, simulated, trace

from dstune.errors import DstuneError
from dstune.measure.operation_trace import OpClass, Span, Trace
from dstune.measure.trace_files import (
    OPERATIONS_FILE,
    REST_FILE,
    STEPS_FILE,
    has_trace,
    read_trace,
    write_trace,
)


def full() -> Trace:
    made = simulated(np.random.default_rng(1), num_loads=2, num_steps=6)
    span = Span("latent_attention", OpClass.ATTENTION, 7, 9)
    return dataclasses.replace(made, spans=(span,), front_cpu_s=0.25)


@pytest.mark.parametrize(
    "made",
    [full(), trace([]), trace([[Made({"experts": 1.0})]], ceilings=None, device="NVIDIA H200")],
    ids=["full", "empty", "no ceilings"],
)
def test_what_was_written_is_read(tmp_path: Path, made: Trace) -> None:
    assert not has_trace(tmp_path)
    write_trace(tmp_path, made)
    assert has_trace(tmp_path)
    assert read_trace(tmp_path) == made
    assert {one.name for one in tmp_path.iterdir()} == {STEPS_FILE, OPERATIONS_FILE, REST_FILE}


def test_others_read_the_columns(tmp_path: Path) -> None:
    write_trace(tmp_path, full())
    rows = pq.read_table(tmp_path / OPERATIONS_FILE).to_pylist()
    assert list(rows[0]) == [
        "load", "step", "operation", "op_class", "num_calls", "time_ns", "num_bytes", "num_flops",
    ]  # fmt: skip
    assert {row["op_class"] for row in rows} == {"attention", "projection", "ffn"}
    assert rows[0]["num_bytes"] == 10_000


def no_trace(folder: Path) -> None:
    (folder / REST_FILE).unlink()


def cut(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:40]) and None


def changed(key: str, value: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        rest = json.loads((folder / REST_FILE).read_text())
        (folder / REST_FILE).write_text(json.dumps({**rest, key: value}))

    return change


def rows_changed(
    name: str, change: Callable[[list[dict[str, object]]], object]
) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        table = pq.read_table(folder / name)
        rows = table.to_pylist()
        change(rows)
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), folder / name)

    return rewrite


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (no_trace, "holds no trace: make one with dstune trace"),
        (cut(STEPS_FILE), STEPS_FILE),
        (cut(OPERATIONS_FILE), OPERATIONS_FILE),
        (cut(REST_FILE), "trace.json is damaged"),
        (changed("schema_version", 2), "schema version 2, not 1"),
        (changed("ceilings", {"copy_bytes_per_s": "fast"}), "trace.json is damaged"),
        (changed("spans", {"name": []}), "trace.json is damaged"),
        (rows_changed(STEPS_FILE, lambda rows: rows.append(rows[0])), "has a step twice"),
        (rows_changed(STEPS_FILE, lambda rows: rows.pop()), "that trace_steps.parquet lacks"),
        (rows_changed(STEPS_FILE, lambda rows: rows[0].update(phase="chew")), "'chew'"),
        (rows_changed(STEPS_FILE, lambda rows: rows[0].update(wait_ns=None)), "has empty cells"),
        (rows_changed(OPERATIONS_FILE, lambda rows: rows[3].update(num_flops=None)),
         "operations.parquet has empty cells"),
        (rows_changed(OPERATIONS_FILE, lambda rows: rows[0].update(op_class="none")), "'none'"),
    ],
)  # fmt: skip
def test_a_damaged_trace_is_one_line(
    tmp_path: Path, damage: Callable[[Path], None], said: str
) -> None:
    write_trace(tmp_path, full())
    damage(tmp_path)
    with pytest.raises(DstuneError) as raised:
        read_trace(tmp_path)
    assert said in str(raised.value) and "\n" not in str(raised.value)
