"""THE table of tunable knobs: the only place that knows a knob's name, bounds, default and flag.

`EngineConfig`, `--set`, the search-space check, the flag renderers and the README's table come
from it. Names are vLLM's, since that is what users type already. A leaf.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from dstune.errors import KnobError

KnobValue = bool | int | float | str | None


class Restart(StrEnum):
    """What a change of a knob costs a running engine, cheapest first."""

    LIVE = "live"  # applied between two steps
    REBUILD = "rebuild"  # the KV cache (and graphs) are made again, weights stay
    RELOAD = "reload"  # weights are loaded again


RESTART_ORDER = (Restart.LIVE, Restart.REBUILD, Restart.RELOAD)


@dataclass(frozen=True)
class Knob:
    """One tunable quantity. `None` as a default means: derived from model and machine."""

    name: str
    kind: Literal["int", "float", "bool", "choice"]
    default: KnobValue
    restart: Restart
    meaning: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[KnobValue, ...] = ()
    also_called: str = ""
    flags: Mapping[str, str] = field(default_factory=dict)  # target -> flag or VARIABLE


KNOBS: tuple[Knob, ...] = (
    Knob(
        "max_num_seqs", "int", 32, Restart.LIVE,
        "most sequences that run in one step", "sequences", 1, 4096,
        also_called="max_batch_size",
        flags={"vllm": "--max-num-seqs", "sglang": "--max-running-requests"},
    ),
    Knob(
        "batch_timeout_ms", "float", 0.0, Restart.LIVE,
        "how long an arriving request may be held so that others join its first step; "
        "running decodes never wait", "ms", 0, 10_000,
        also_called="timeout_ms",
    ),
    Knob(
        "max_num_batched_tokens", "int", 2048, Restart.LIVE,
        "token budget of one step, prefill and decode together", "tokens", 1, 1 << 20,
        also_called="prefill_chunk",
        flags={"vllm": "--max-num-batched-tokens", "sglang": "--chunked-prefill-size"},
    ),
    Knob(
        "block_size", "choice", 16, Restart.REBUILD,
        "tokens per KV block", "tokens", choices=(8, 16, 32, 64, 128, 256),
        flags={"vllm": "--block-size", "sglang": "--page-size"},
    ),
    Knob(
        "kv_cache_dtype", "choice", "auto", Restart.REBUILD,
        "element type of the KV cache; auto follows precision", choices=(
            "auto", "fp32", "bf16", "fp16", "int8", "fp8"),
        flags={"vllm": "--kv-cache-dtype", "sglang": "--kv-cache-dtype"},
    ),
    Knob(
        "max_model_len", "int", None, Restart.REBUILD,
        "longest sequence, prompt and output together; unset: the model's own, or what the KV "
        "cache holds where that is less",
        "tokens", 1, 1 << 24,
        also_called="max_seq_len",
        flags={"vllm": "--max-model-len", "sglang": "--context-length"},
    ),
    Knob(
        "gpu_memory_utilization", "float", 0.9, Restart.REBUILD,
        "share of the device's memory for weights, activations and KV cache together",
        "", 0.01, 1.0,
        flags={"vllm": "--gpu-memory-utilization", "sglang": "--mem-fraction-static"},
    ),
    Knob(
        "kv_cache_memory_bytes", "int", None, Restart.REBUILD,
        "size of the KV cache; unset: what gpu_memory_utilization leaves, on a CPU 1 GiB at most",
        "bytes", 1, 1 << 50,
        flags={"vllm": "--kv-cache-memory-bytes"},
    ),
    Knob(
        "precision", "choice", "bf16", Restart.RELOAD,
        "arithmetic of the weights' matrix products; int8 is W8A8, scaled per token and 64 values, "
        "fp8 is W8A8 in e4m3, int8_weight_only multiplies in bf16",
        choices=("fp32", "bf16", "fp16", "int8", "int8_weight_only", "fp8"),
        flags={"vllm": "--dtype", "sglang": "--dtype"},
    ),
    Knob(
        "enable_prefix_caching", "bool", True, Restart.REBUILD,
        "share the KV blocks of equal prefixes",
        flags={"vllm": "--enable-prefix-caching", "sglang": "--disable-radix-cache"},
    ),
    Knob(
        "enable_chunked_prefill", "bool", True, Restart.LIVE,
        "a prompt may be computed over several steps",
        flags={"vllm": "--enable-chunked-prefill"},
    ),
    Knob(
        "backend", "choice", "auto", Restart.RELOAD,
        "which kernels run; auto picks by device", choices=("auto", "triton", "cpu", "reference"),
    ),
    Knob(
        "enforce_eager", "bool", False, Restart.REBUILD,
        "on a GPU: launch every kernel of a decode step one by one, without CUDA graphs",
        flags={"vllm": "--enforce-eager", "sglang": "--disable-decode-cuda-graph"},
    ),
)  # fmt: skip

BY_NAME: Mapping[str, Knob] = {knob.name: knob for knob in KNOBS}

DEFAULTS: Mapping[str, KnobValue] = {knob.name: knob.default for knob in KNOBS}


def find(name: str) -> Knob:
    """The knob of that name; raises `KnobError` with the nearest names otherwise."""
    if name in BY_NAME:
        return BY_NAME[name]
    for knob in KNOBS:
        if name in knob.also_called.split(", "):
            raise KnobError(f"unknown knob '{name}': it is called '{knob.name}' here")
    near = difflib.get_close_matches(name, BY_NAME, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"knobs are: {', '.join(BY_NAME)}"
    raise KnobError(f"unknown knob '{name}': {hint}")


def check_value(name: str, value: object) -> KnobValue:
    """`value` as the knob's own type; raises `KnobError` when it is of another type or outside."""
    knob = find(name)
    if value is None:
        if knob.default is None:
            return None
        raise KnobError(f"{name} needs a value")
    if knob.kind == "bool":
        if isinstance(value, bool):
            return value
        raise KnobError(f"{name} must be true or false, not {value!r}")
    if knob.kind == "choice":
        # True == 1 in Python, so a bool must not slip through as a number
        if not isinstance(value, bool) and value in knob.choices:
            return next(choice for choice in knob.choices if choice == value)
        listed = ", ".join(str(choice) for choice in knob.choices)
        power = " (a power of two)" if name == "block_size" else ""
        raise KnobError(f"{name} must be one of {listed}{power}, not {value!r}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise KnobError(f"{name} must be a number, not {value!r}")
    assert knob.low is not None and knob.high is not None
    if not knob.low <= value <= knob.high:  # also refuses NaN and infinity
        raise KnobError(f"{name} must be between {knob.low:g} and {knob.high:g}, not {value:g}")
    if knob.kind == "int" and value != int(value):
        raise KnobError(f"{name} must be a whole number, not {value!r}")
    return int(value) if knob.kind == "int" else float(value)


def parse_settings(settings: Sequence[str]) -> dict[str, KnobValue]:
    """KNOB=VALUE texts with each value as its knob's type; raises `KnobError`."""
    parsed: dict[str, KnobValue] = {}
    for one in settings:
        name, sign, text = one.partition("=")
        if not sign:
            raise KnobError(f"--set {one}: write KNOB=VALUE, such as max_num_seqs=16")
        knob = find(name.strip())
        parsed[knob.name] = check_value(knob.name, _typed(knob, text.strip()))
    return parsed


def _typed(knob: Knob, text: str) -> KnobValue:
    """The value that a text spells; as text where it spells none, which the knob's check tells."""
    if text in ("null", "none", ""):
        return None
    if knob.kind == "choice":
        return next((one for one in knob.choices if str(one) == text), text)
    if knob.kind == "bool":
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        return int(text) if knob.kind == "int" else float(text)
    except ValueError:
        return text


def complete(values: Mapping[str, object]) -> dict[str, KnobValue]:
    """Every knob with its value or its default, each checked and all legal together."""
    for name in values:
        find(name)
    full = {name: check_value(name, values.get(name, DEFAULTS[name])) for name in BY_NAME}
    check_together(full)
    return full


def check_together(values: Mapping[str, KnobValue]) -> None:
    """Raises `KnobError` for knobs that are legal alone and illegal beside each other."""
    tokens, seqs, length = (
        values["max_num_batched_tokens"], values["max_num_seqs"], values["max_model_len"]
    )  # fmt: skip
    assert isinstance(tokens, int) and isinstance(seqs, int)
    if tokens < seqs:
        raise KnobError(
            f"max_num_batched_tokens ({tokens}) must be at least max_num_seqs ({seqs}): "
            "every running sequence needs one token of a step"
        )
    if not values["enable_chunked_prefill"] and isinstance(length, int) and tokens < length:
        raise KnobError(
            f"max_num_batched_tokens ({tokens}) must be at least max_model_len ({length}) "
            "when enable_chunked_prefill is false"
        )


def restart_between(old: Mapping[str, KnobValue], new: Mapping[str, KnobValue]) -> Restart | None:
    """The dearest restart that a change from `old` to `new` (both complete) needs, if any."""
    changed = [BY_NAME[name].restart for name in BY_NAME if old[name] != new[name]]
    return max(changed, key=RESTART_ORDER.index, default=None)
