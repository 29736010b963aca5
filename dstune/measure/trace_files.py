"""Measure: a trace of operations in a run folder, and back.

<run>/
    trace_steps.parquet    one row per step
    operations.parquet     one row per operation and step
    trace.json             the rest: device, ceilings, facts, the spans of the first steps
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from dstune.errors import DstuneError, UsageError
from dstune.measure.files import publish, temporary_for, write_atomically
from dstune.measure.operation_trace import (
    Ceilings,
    OpClass,
    OperationRow,
    Span,
    StepPhase,
    Trace,
    TraceStep,
)

SCHEMA_VERSION = 1
STEPS_FILE = "trace_steps.parquet"
OPERATIONS_FILE = "operations.parquet"
REST_FILE = "trace.json"
_ENUMS: dict[str, type[Enum]] = {"phase": StepPhase, "op_class": OpClass}
_TEXT = ("operation", *_ENUMS)

R = TypeVar("R", TraceStep, OperationRow)


def has_trace(folder: Path) -> bool:
    """Whether a run folder holds a trace; it is written last, so a whole one."""
    return (folder / REST_FILE).is_file()


def write_trace(folder: Path, trace: Trace) -> None:
    """Writes the three files, each to a temporary name that is then renamed."""
    _write_rows(folder / STEPS_FILE, trace.steps, TraceStep)
    _write_rows(folder / OPERATIONS_FILE, trace.operations, OperationRow)
    rest = {
        "schema_version": SCHEMA_VERSION,
        "device": trace.device,
        "ceilings": dataclasses.asdict(trace.ceilings) if trace.ceilings else None,
        "front_cpu_s": trace.front_cpu_s,
        "facts": trace.facts,
        "spans": {
            "name": [one.name for one in trace.spans],
            "op_class": [one.op_class.value for one in trace.spans],
            "start_ns": [one.start_ns for one in trace.spans],
            "duration_ns": [one.duration_ns for one in trace.spans],
        },
    }
    text = json.dumps(rest, allow_nan=False)
    write_atomically(folder / REST_FILE, text.encode("utf-8") + b"\n")


def read_trace(folder: Path) -> Trace:
    """The trace of a run folder.

    Raises `UsageError` where there is none, `DstuneError` where it is damaged.
    """
    path = folder / REST_FILE
    if not path.is_file():
        raise UsageError(f"{folder} holds no trace: make one with dstune trace PROFILE")
    steps = _read_rows(folder / STEPS_FILE, TraceStep)
    operations = _read_rows(folder / OPERATIONS_FILE, OperationRow)
    _check_rows(folder, steps, operations)
    try:
        rest = json.loads(path.read_bytes())
        if rest["schema_version"] != SCHEMA_VERSION:
            raise DstuneError(f"{path} is of schema version {rest['schema_version']}, not 1")
        ceilings, front_cpu_s = rest["ceilings"], rest["front_cpu_s"]
        return Trace(
            steps=tuple(steps),
            operations=tuple(operations),
            spans=_spans(rest["spans"]),
            ceilings=Ceilings(**{k: float(v) for k, v in ceilings.items()}) if ceilings else None,
            device=str(rest["device"]),
            front_cpu_s=None if front_cpu_s is None else float(front_cpu_s),
            facts=dict(rest["facts"]),
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise DstuneError(f"{path} is damaged: {why}") from None


def _spans(columns: Mapping[str, Sequence[Any]]) -> tuple[Span, ...]:
    rows = zip(
        columns["name"],
        columns["op_class"],
        columns["start_ns"],
        columns["duration_ns"],
        strict=True,
    )
    return tuple(Span(str(name), OpClass(kind), int(at), int(ns)) for name, kind, at, ns in rows)


def _schema(record: type[Any]) -> pa.Schema:
    names = [field.name for field in dataclasses.fields(record)]
    return pa.schema([(name, pa.string() if name in _TEXT else pa.int64()) for name in names])


def _write_rows(path: Path, rows: Sequence[R], record: type[R]) -> None:
    schema = _schema(record)
    columns = {name: [getattr(row, name) for row in rows] for name in schema.names}
    temporary = temporary_for(path)
    pq.write_table(pa.table(columns, schema=schema), temporary, compression="zstd")
    publish(temporary, path)


def _read_rows(path: Path, record: type[R]) -> list[R]:
    schema = _schema(record)
    try:
        table = pq.read_table(path).select(schema.names).cast(schema)
        if any(table[name].null_count for name in schema.names):
            raise ValueError(f"{path.name} has empty cells")
        columns = {name: table[name].to_pylist() for name in schema.names}
        for name, kind in _ENUMS.items():
            if name in columns:
                columns[name] = [kind(value) for value in columns[name]]
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        why = " ".join(str(error).split())
        raise DstuneError(f"cannot read the trace in {path}: {why}") from None
    return [record(*row) for row in zip(*columns.values(), strict=True)]


def _check_rows(folder: Path, steps: list[TraceStep], operations: list[OperationRow]) -> None:
    """Refuses what cannot be summed up: steps that stand twice, or not at all."""
    known = {(one.load, one.step) for one in steps}
    problem = ""
    if len(known) != len(steps):
        problem = f"{STEPS_FILE} has a step twice"
    elif any((one.load, one.step) not in known for one in operations):
        problem = f"{OPERATIONS_FILE} has an operation of a step that {STEPS_FILE} lacks"
    if problem:
        raise DstuneError(f"the trace in {folder} is damaged: {problem}")
