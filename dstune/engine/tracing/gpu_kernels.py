"""Kernels of a GPU's steps, as the profiler saw them, made into operations.

By name and by order alone, since a replayed graph tells neither which layer nor which call of
Python a kernel belongs to. What no rule names is `other`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

OTHER = "other"
LINEAR = "linear"

KERNELS: dict[str, tuple[str, ...]] = {
    "_silu_and_mul": ("silu_and_mul",),
    "_flash": ("paged_attention", "dense_attention"),
    "decode_kernel": ("paged_attention",),
    "latent_kernel": ("latent_attention",),
    "merge_kernel": ("paged_attention", "latent_attention"),
    "_rms_norm": ("rms_norm",),
    "_add_rms_norm": ("add_rms_norm",),
    "_rotate_and_write_kv": ("rotate_and_write_kv",),
    "_rotate_and_write_latent": ("rotate_and_write_latent",),
    "_write_rows": ("write_kv", "write_latent"),
    "_rope": ("apply_rope",),
    "_gate_kernel": ("gate_softmax", "gate_sigmoid"),
    "sort_kernel": ("experts",),
    "count_kernel": ("experts",),
    "plan_kernel": ("experts",),
    "place_kernel": ("experts",),
    "grouped_kernel": ("experts",),
    "combine_kernel": ("experts",),
    "linear_kernel": (LINEAR,),
    "add_splits_kernel": (LINEAR,),
    "filter_kernel": ("sample",),
    "_draw": ("sample",),
}
"""Names of the engine's own kernels -> the operations that launch them, the likelier first."""
PREPARING = ("quantise_groups_kernel", "quantise_rows_kernel")
"""They belong to the product that follows: of a linear layer or of experts."""
TORCH = {  # parts of the names of torch's and cuBLAS's kernels
    "splitkreduce": LINEAR,
    "gemm": LINEAR,
    "gemv": LINEAR,
    "nvjet": LINEAR,
    "cutlass": LINEAR,
    "argmax": "choose_tokens",
    "arg_max": "choose_tokens",
}
FOLLOWING = ("add_splits_kernel", "splitkreduce")
"""They end the product before them, and are not one of their own."""


@dataclass(frozen=True)
class KernelEvent:
    """One kernel as it ran, on the engine's clock."""

    name: str
    start_ns: int
    duration_ns: int


@dataclass
class Spent:
    """What one step's kernels took."""

    num_kernels: dict[str, int] = field(default_factory=dict)  # by operation
    time_ns: dict[str, int] = field(default_factory=dict)
    named: list[tuple[str, KernelEvent]] = field(default_factory=list)
    gap_ns: int = 0  # nothing ran between the first kernel and the last


def by_step(
    events: Sequence[KernelEvent], steps: Sequence[tuple[int, int]]
) -> tuple[list[list[KernelEvent]], int]:
    """The kernels that began within each step [start_ns, end_ns], in order, and how many did not.

    `steps` are in order and do not overlap.
    """
    found: list[list[KernelEvent]] = [[] for _ in steps]
    starts = [start_ns for start_ns, _ in steps]
    num_outside = 0
    for event in sorted(events, key=lambda one: one.start_ns):
        index = bisect_right(starts, event.start_ns) - 1
        if index >= 0 and event.start_ns <= steps[index][1]:
            found[index].append(event)
        else:
            num_outside += 1
    return found, num_outside


def spent_by(
    events: Sequence[KernelEvent], calls: Mapping[str, int], layers: Sequence[str] = ()
) -> Spent:
    """One step's kernels, in order, by operation.

    `calls` is what the step called how often; `layers` its linear layers in the order of calls.
    """
    spent = Spent()
    names = _with_roles(events, [_operation(one, events, calls) for one in range(len(events))],
                        layers)  # fmt: skip
    busy_until = events[0].start_ns if events else 0
    for name, event in zip(names, events, strict=True):
        spent.num_kernels[name] = spent.num_kernels.get(name, 0) + 1
        spent.time_ns[name] = spent.time_ns.get(name, 0) + event.duration_ns
        spent.named.append((name, event))
        spent.gap_ns += max(0, event.start_ns - busy_until)
        busy_until = max(busy_until, event.start_ns + event.duration_ns)
    return spent


def _operation(index: int, events: Sequence[KernelEvent], calls: Mapping[str, int]) -> str:
    kernel = events[index].name
    if kernel in PREPARING:
        later = (one.name for one in events[index + 1 :])
        product = next((one for one in later if one in ("linear_kernel", "grouped_kernel")), "")
        return KERNELS[product][0] if product else OTHER
    candidates = KERNELS.get(kernel)
    if candidates is not None:
        return next((one for one in candidates if one in calls), candidates[0])
    lowered = kernel.lower()
    return next((name for part, name in TORCH.items() if part in lowered), OTHER)


def _with_roles(
    events: Sequence[KernelEvent], names: list[str], layers: Sequence[str]
) -> list[str]:
    """The names with `linear` made each layer's own, where products and calls of layers match.

    Where torch's own products run beside them (of a mixture's gate, of absorbed attention) the
    order tells nothing, and the names stay as they are.
    """
    linear = [index for index, name in enumerate(names) if name == LINEAR]
    products = [index for index in linear if not _is_part(events[index].name)]
    if len(products) != len(layers):
        return names
    found = list(names)
    for index in linear:
        # what prepares belongs to the product that follows, what ends one to the one before
        place = bisect_right(products, index) - 1
        found[index] = layers[place + 1 if events[index].name in PREPARING else max(place, 0)]
    return found


def _is_part(kernel: str) -> bool:
    """Whether a kernel prepares or ends a product rather than being one."""
    return kernel in PREPARING or any(part in kernel.lower() for part in FOLLOWING)
