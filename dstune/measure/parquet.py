"""Measure: raw samples to parquet and back, with the columns that people and scripts rely on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from dstune.errors import DstuneError
from dstune.measure.files import publish, temporary_for
from dstune.measure.sample import Sample, SampleError, Status, StepSample

_TEXT = ("request_id", "trial_id", "session_id", "kind", "status", "error", "token_source",
         "precision", "backend")  # fmt: skip
_LISTS = {"chunk_offsets_ns": pa.int64(), "chunk_tokens": pa.int32()}


def _type_of(column: str) -> pa.DataType:
    if column in _TEXT:
        return pa.string()
    if column in _LISTS:
        return pa.list_(_LISTS[column])
    return pa.int64() if column.endswith("_ns") else pa.int32()


def _schema(record: type[Any]) -> pa.Schema:
    names = [field.name for field in dataclasses.fields(record)]
    return pa.schema([(name, _type_of(name)) for name in names])


REQUESTS = _schema(Sample)
STEPS = _schema(StepSample)

R = TypeVar("R", Sample, StepSample)


def write_samples(path: Path, samples: Iterable[Sample]) -> None:
    """Writes requests.parquet to a temporary name and renames it."""
    _write(path, list(samples), REQUESTS)


def write_steps(path: Path, steps: Iterable[StepSample]) -> None:
    """Writes steps.parquet likewise."""
    _write(path, list(steps), STEPS)


def read_samples(path: Path) -> list[Sample]:
    """The samples of a requests.parquet; raises `DstuneError` for a damaged file."""
    rows = _rows(path, REQUESTS)
    enums = (
        {**row, "status": Status(row["status"]), "error": SampleError(row["error"])} for row in rows
    )
    return [Sample(**row) for row in enums]


def read_steps(path: Path) -> list[StepSample]:
    """The steps of a steps.parquet."""
    return [StepSample(**row) for row in _rows(path, STEPS)]


def _write(path: Path, records: Sequence[R], schema: pa.Schema) -> None:
    columns = {name: [getattr(record, name) for record in records] for name in schema.names}
    temporary = temporary_for(path)
    pq.write_table(pa.table(columns, schema=schema), temporary, compression="zstd")
    publish(temporary, path)


def _rows(path: Path, schema: pa.Schema) -> list[dict[str, Any]]:
    try:
        table = pq.read_table(path).select(schema.names)
    except (OSError, pa.ArrowException, KeyError) as error:
        why = " ".join(str(error).split())
        raise DstuneError(f"cannot read the samples in {path}: {why}") from None
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows
