"""The knob table: values of the wrong kind, illegal neighbours, and what a change costs."""

from dataclasses import fields

import pytest

from dstune import knobs
from dstune.engine.config import EngineConfig
from dstune.errors import KnobError
from dstune.knobs import Restart


def test_engine_config_has_the_knobs_of_the_table_in_its_order() -> None:
    assert [field.name for field in fields(EngineConfig)] == list(knobs.BY_NAME)


def test_every_default_is_legal() -> None:
    assert knobs.complete({}) == dict(knobs.DEFAULTS)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_num_seq", 4, "did you mean 'max_num_seqs'"),
        ("prefill_chunk", 4, "it is called 'max_num_batched_tokens' here"),
        ("max_num_seqs", 0, "between 1 and"),
        ("max_num_seqs", 2.5, "whole number"),
        ("max_num_seqs", True, "must be a number"),
        ("max_num_seqs", "8", "must be a number"),
        ("max_num_seqs", None, "needs a value"),
        ("max_num_seqs", float("nan"), "between"),
        ("max_num_seqs", float("inf"), "between"),
        ("batch_timeout_ms", -1, "between 0"),
        ("batch_timeout_ms", float("nan"), "between"),
        ("block_size", 24, "a power of two"),
        ("block_size", True, "one of"),
        ("precision", "int4", "one of fp32"),
        ("enable_prefix_caching", 1, "true or false"),
    ],
)
def test_a_wrong_value_is_one_line(name: str, value: object, message: str) -> None:
    with pytest.raises(KnobError, match=message) as wrong:
        knobs.complete({name: value})
    assert "\n" not in str(wrong.value)


@pytest.mark.parametrize(
    "values",
    [
        {"max_num_batched_tokens": 16, "max_num_seqs": 17},
        {"max_num_batched_tokens": 64, "max_num_seqs": 4, "max_model_len": 65,
         "enable_chunked_prefill": False},
    ],
)  # fmt: skip
def test_illegal_beside_each_other(values: dict[str, object]) -> None:
    with pytest.raises(KnobError, match="max_num_batched_tokens"):
        knobs.complete(values)


def test_whole_floats_become_ints() -> None:
    assert knobs.check_value("max_num_seqs", 8.0) == 8
    assert isinstance(knobs.check_value("max_num_seqs", 8.0), int)


@pytest.mark.parametrize(
    ("changed", "restart"),
    [
        ({}, None),
        ({"max_num_seqs": 4}, Restart.LIVE),
        ({"max_num_seqs": 4, "block_size": 32}, Restart.REBUILD),
        ({"precision": "int8", "block_size": 32}, Restart.RELOAD),
    ],
)
def test_a_change_costs_its_dearest_restart(
    changed: dict[str, object], restart: Restart | None
) -> None:
    assert knobs.restart_between(knobs.complete({}), knobs.complete(changed)) is restart


def test_settings_become_values_of_the_knobs_types() -> None:
    texts = [
        "max_num_seqs=16", "batch_timeout_ms=2.5", "precision=int8", "block_size=32",
        "enable_prefix_caching=false", "max_model_len=null", "kv_cache_memory_bytes = 9",
    ]  # fmt: skip
    assert knobs.parse_settings(texts) == {
        "max_num_seqs": 16,
        "batch_timeout_ms": 2.5,
        "precision": "int8",
        "block_size": 32,
        "enable_prefix_caching": False,
        "max_model_len": None,
        "kv_cache_memory_bytes": 9,
    }


@pytest.mark.parametrize(
    "text",
    ["max_num_seqs", "max_num_seqs=", "max_num_seqs=many", "max_num_seqs=0", "block_size=17",
     "enable_prefix_caching=yes", "nonsense=1", "precision=fp12"],
)  # fmt: skip
def test_settings_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(KnobError):
        knobs.parse_settings([text])
