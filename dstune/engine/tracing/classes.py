"""What each operation of the engine is for, in the words of `measure/operation_trace.py`."""

from __future__ import annotations

from dstune.errors import DstuneError

_OPERATIONS = {
    "paged_attention": "attention",
    "latent_attention": "attention",
    "dense_attention": "attention",
    "gather_latent": "attention",
    "silu_and_mul": "ffn",
    "experts": "ffn",
    "gate_softmax": "ffn",
    "gate_sigmoid": "ffn",
    "rms_norm": "norm and rope",
    "add_rms_norm": "norm and rope",
    "apply_rope": "norm and rope",
    "write_kv": "kv write",
    "rotate_and_write_kv": "kv write",
    "write_latent": "kv write",
    "rotate_and_write_latent": "kv write",
    "embedding": "head",
    "sample": "sampling",
    "choose_tokens": "sampling",
    "schedule": "scheduling",
    "complete": "scheduling",
    "build_input": "scheduling",
    "linear": "other",  # a product whose role is not known, on a GPU
    "launch_gap": "launch gap",
    "other": "other",
}
_ROLES = {  # of linear layers, by the first tensor that is in them
    "q_proj": "projection",
    "q_a_proj": "projection",
    "q_b_proj": "projection",
    "kv_b_proj": "projection",
    "absorb_key": "projection",
    "absorb_value": "projection",
    "o_proj": "projection",
    "gate": "ffn",
    "gate_proj": "ffn",
    "down_proj": "ffn",
    "lm_head": "head",
}


def class_of(operation: str) -> str:
    """The class of an operation, such as `paged_attention` or `linear.o_proj`.

    Raises `DstuneError` for one that has none: whoever adds an operation says what it is for.
    """
    name, _, role = operation.partition(".")
    known = _OPERATIONS.get(name)
    if role:
        known = _ROLES.get(role.split("+")[0].split(".")[-1])
    if known is None:
        raise DstuneError(f"operation {operation} has no class; add it to tracing/classes.py")
    return known
