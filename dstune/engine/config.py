"""The engine's configuration: the knob table's values with types, and what each becomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from dstune import knobs
from dstune.knobs import KnobValue


@dataclass(frozen=True)
class EngineConfig:
    """One value per knob of the table, in its order; defaults live in the table alone."""

    max_num_seqs: int
    batch_timeout_ms: float
    max_num_batched_tokens: int
    block_size: int
    kv_cache_dtype: str
    max_model_len: int | None
    gpu_memory_utilization: float
    kv_cache_memory_bytes: int | None
    precision: str
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    backend: str
    enforce_eager: bool

    @classmethod
    def from_knobs(cls, values: Mapping[str, object]) -> EngineConfig:
        """The configuration that these knobs and the table's defaults make.

        Raises `KnobError` for an unknown knob, a value outside its bounds, or values that are
        illegal beside each other.
        """
        return cls(**cast("dict[str, Any]", knobs.complete(values)))

    def to_knobs(self) -> dict[str, KnobValue]:
        """The same as a plain mapping."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
