"""A traced engine on real models: the same tokens, and rows that the architecture foretells."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from clocks import Ticking
from models import save_tiny

from dstune.engine.config import EngineConfig
from dstune.engine.engine import Engine
from dstune.engine.request import SamplingParams
from dstune.engine.slowdown import Slowdown
from dstune.engine.tracing.ceilings import Ceilings
from dstune.engine.tracing.engine import TracedEngine
from dstune.engine.tracing.recorder import OPERATION_COLUMNS, STEP_COLUMNS
from dstune.measure.operation_trace import OpClass
from dstune.model.loading.open import Checkpoint, open_checkpoint

KNOBS = {"precision": "fp32", "max_model_len": 128, "kv_cache_memory_bytes": 4 << 20}
EACH_STEP = {"schedule": 1, "build_input": 1, "complete": 1}
PROMPT = tuple(range(40, 60))


def no_measurement(kernels: object, precision: object) -> Ceilings:
    return Ceilings(1.0, 1.0)


def traced(checkpoint: Checkpoint, slowdown: Slowdown | None = None, **knobs: Any) -> TracedEngine:
    config = EngineConfig.from_knobs(KNOBS | knobs)
    return TracedEngine(
        checkpoint, config, now_ns=Ticking(), slowdown=slowdown, measure=no_measurement
    )


def generate(engine: Engine, temperature: float = 0.0, num_tokens: int = 5) -> list[int]:
    params = SamplingParams(num_tokens, temperature, seed=3, ignore_eos=True)
    request = engine.add("one", PROMPT, params, arrival_ns=0)
    while engine.has_requests:
        engine.step()
    return request.token_ids


class Taken:
    """What was recorded, by step."""

    def __init__(self, engine: TracedEngine) -> None:
        taken = engine.take_trace()
        self.classes: dict[str, str] = dict(taken["names"])
        self.steps = [dict(zip(STEP_COLUMNS, row, strict=True)) for row in taken["steps"]]
        self.rows: list[dict[str, dict[str, int]]] = [{} for _ in self.steps]
        for values in taken["operations"]:
            row = dict(zip(OPERATION_COLUMNS, values, strict=True))
            name = taken["names"][row["operation"]][0]
            self.rows[row["step"]][name] = row

    def column(self, step: int, name: str) -> dict[str, int]:
        return {operation: row[name] for operation, row in self.rows[step].items()}


@pytest.fixture(scope="module")
def bundled() -> Checkpoint:
    return open_checkpoint("tiny-deepseek")


def test_the_same_tokens_greedy_and_sampled(bundled: Checkpoint) -> None:
    plain = Engine(bundled, EngineConfig.from_knobs(KNOBS))
    engine = traced(bundled)
    for temperature in (0.0, 0.8):
        assert generate(engine, temperature) == generate(plain, temperature)


def test_an_untraced_engine_calls_the_kernels_themselves(bundled: Checkpoint) -> None:
    from dstune.kernels.attention import cpu, reference

    engine = Engine(bundled, EngineConfig.from_knobs(KNOBS))
    assert engine._kernels.latent_attention in (cpu.latent_attention, reference.latent_attention)
    assert engine._kernels.wrap_layer is None
    assert "schedule" not in vars(engine.scheduler)


def test_a_decode_step_of_the_bundled_model(bundled: Checkpoint) -> None:
    shape = bundled.shape
    assert shape.mla is not None and shape.mla.q_lora_rank is not None
    layers = shape.num_layers
    mixtures = sum(shape.is_moe_layer(index) for index in range(layers))
    engine = traced(bundled)
    generate(engine)
    taken = Taken(engine)
    assert taken.column(3, "num_calls") == {
        **EACH_STEP,
        "choose_tokens": 1,
        "embedding": 1,
        "rms_norm": 1 + layers,  # the first, and the query latents
        "add_rms_norm": 2 * layers,
        "linear.q_a_proj+kv_a_proj_with_mqa": layers,
        "linear.q_b_proj": layers,
        "rotate_and_write_latent": layers,
        "linear.absorb_key": layers,
        "latent_attention": layers,
        "linear.absorb_value": layers,
        "linear.o_proj": layers,
        "linear.gate_proj+up_proj": layers - mixtures,
        "linear.down_proj": layers - mixtures,
        "silu_and_mul": layers,
        "linear.gate": mixtures,
        "gate_sigmoid": mixtures,
        "experts": mixtures,
        "linear.shared_experts.gate_proj+up_proj": mixtures,
        "linear.shared_experts.down_proj": mixtures,
        "linear.lm_head": 1,
    }


def test_a_prefill_step_expands_latents(bundled: Checkpoint) -> None:
    engine = traced(bundled)
    generate(engine)
    calls = Taken(engine).column(0, "num_calls")
    layers = bundled.shape.num_layers
    expanded = ("gather_latent", "linear.kv_b_proj", "dense_attention")
    assert [calls[name] for name in expanded] == [layers] * 3
    assert "latent_attention" not in calls


@pytest.mark.parametrize("kind", ["llama", "llama-tied", "deepseek-v2"])
def test_roles_of_other_architectures(kind: str, tmp_path: Path) -> None:
    save_tiny(kind, tmp_path)
    engine = traced(open_checkpoint(str(tmp_path)))
    generate(engine)
    calls = Taken(engine).column(2, "num_calls")
    roles = {name: count for name, count in calls.items() if name.startswith("linear.")}
    if kind == "deepseek-v2":  # of two layers the first is dense
        assert roles == {
            "linear.q_proj+kv_a_proj_with_mqa": 2, "linear.o_proj": 2,
            "linear.gate_proj+up_proj": 1, "linear.down_proj": 1,
            "linear.shared_experts.gate_proj+up_proj": 1, "linear.shared_experts.down_proj": 1,
            "linear.lm_head": 1, "linear.absorb_key": 2, "linear.absorb_value": 2, "linear.gate": 1,
        }  # fmt: skip
    else:
        assert roles == {
            "linear.q_proj+k_proj+v_proj": 2, "linear.o_proj": 2, "linear.gate_proj+up_proj": 2,
            "linear.down_proj": 2, "linear.lm_head": 1,
        }  # fmt: skip
        assert calls["paged_attention"] == calls["rotate_and_write_kv"] == 2


def test_steps_tell_what_they_computed(bundled: Checkpoint) -> None:
    engine = traced(bundled)
    generate(engine, num_tokens=3)
    names = ("num_prefill_tokens", "num_decode_tokens", "num_context_tokens")
    seen = [tuple(step[name] for name in names) for step in Taken(engine).steps]
    assert seen == [(20, 0, 20), (0, 1, 21), (0, 1, 22)]


def test_operations_add_up_to_at_most_their_step(bundled: Checkpoint) -> None:
    engine = traced(bundled)
    generate(engine, temperature=0.7)
    taken = Taken(engine)
    assert len(taken.steps) == 5
    for index, step in enumerate(taken.steps):
        explained = sum(taken.column(index, "time_ns").values())
        assert 0 < explained <= step["duration_ns"]
        assert taken.column(index, "num_calls")["sample"] == 1


def test_weights_of_a_decode_step_are_read_once(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    engine = traced(open_checkpoint(str(tmp_path)), backend="reference")
    generate(engine)
    head = Taken(engine).rows[2]["linear.lm_head"]
    assert head["num_bytes"] == 300 * 64 * 4 + (64 + 300) * 4
    assert head["num_flops"] == 2 * 300 * 64


def test_classes_are_those_of_a_trace(bundled: Checkpoint) -> None:
    engine = traced(bundled)
    generate(engine, temperature=0.7)
    classes = Taken(engine).classes
    assert {OpClass(one) for one in classes.values()} <= set(OpClass)
    assert classes["linear.o_proj"] == OpClass.PROJECTION
    assert classes["linear.shared_experts.down_proj"] == OpClass.FFN
    assert classes["linear.lm_head"] == OpClass.HEAD


@pytest.mark.parametrize("slow", ["latent_attention", "experts", "linear", "add_rms_norm"])
def test_a_planted_slowdown_is_in_its_operation_alone(bundled: Checkpoint, slow: str) -> None:
    """On a clock that ticks at each reading every call takes as long as any other."""
    found = []
    for slowdown in (None, Slowdown(slow, 3.0)):
        engine = traced(bundled, slowdown)
        generate(engine)
        found.append(Taken(engine).column(3, "time_ns"))
    plain, slowed = found
    longer = Counter(name.partition(".")[0] for name in plain if slowed[name] > plain[name])
    assert set(longer) == {slow}
    assert all(slowed[name] == plain[name] for name in plain if name.partition(".")[0] != slow)


def test_a_slow_step_is_slow_beside_its_operations(bundled: Checkpoint) -> None:
    taken = []
    for slowdown in (None, Slowdown("step", 0.5)):
        engine = traced(bundled, slowdown)
        generate(engine)
        taken.append(Taken(engine))
    plain, slowed = taken
    assert plain.column(3, "time_ns") == slowed.column(3, "time_ns")
    assert slowed.steps[3]["duration_ns"] > plain.steps[3]["duration_ns"]


def test_tracing_outlives_a_restart(bundled: Checkpoint) -> None:
    engine = traced(bundled)
    for changed in ({"block_size": 32}, {"precision": "bf16"}):
        engine.reconfigure(EngineConfig.from_knobs(KNOBS | changed))
        generate(engine)
        assert Taken(engine).column(2, "num_calls")["schedule"] == 1
