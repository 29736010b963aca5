"""Kernels made into operations, on events that a profiler could have seen."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dstune.kernels
from dstune.engine.tracing.classes import class_of
from dstune.engine.tracing.gpu_kernels import (
    KERNELS,
    PREPARING,
    TORCH,
    KernelEvent,
    by_step,
    spent_by,
)


def in_a_row(*names: str, start_ns: int = 0) -> list[KernelEvent]:
    """Kernels of 10 ns, without a gap between them."""
    return [KernelEvent(name, start_ns + 10 * index, 10) for index, name in enumerate(names)]


def test_kernels_belong_to_the_step_in_which_they_begin() -> None:
    events = [KernelEvent(str(at), at, 5) for at in (25, 5, 10, 19, 20, 99, 30, 31)]
    found, num_outside = by_step(events, [(10, 20), (25, 30)])
    assert [[one.start_ns for one in step] for step in found] == [[10, 19, 20], [25, 30]]
    assert num_outside == 3  # 5, 31, 99


def test_gaps_are_between_the_first_kernel_and_the_last() -> None:
    events = [KernelEvent("a", 100, 10), KernelEvent("b", 115, 10), KernelEvent("c", 118, 4),
              KernelEvent("d", 135, 5)]  # fmt: skip
    spent = spent_by(events, {})
    assert spent.gap_ns == 5 + 10, "c ran beside b"
    assert spent.time_ns == {"other": 29} and spent.num_kernels == {"other": 4}
    assert spent_by([], {}).gap_ns == 0


def test_a_kernel_of_two_operations_is_of_the_one_that_was_called() -> None:
    for called in ("dense_attention", "paged_attention"):
        assert list(spent_by(in_a_row("_flash"), {called: 1, "rms_norm": 1}).time_ns) == [called]
    merged = spent_by(in_a_row("latent_kernel", "merge_kernel"), {"latent_attention": 2})
    assert merged.time_ns == {"latent_attention": 20}


def test_quantising_is_of_the_product_that_follows() -> None:
    events = in_a_row(
        "quantise_rows_kernel", "linear_kernel", "quantise_groups_kernel", "_gate_kernel",
        "grouped_kernel", "quantise_rows_kernel",
    )  # fmt: skip
    spent = spent_by(events, {"gate_sigmoid": 1})
    assert spent.time_ns == {"linear": 20, "experts": 20, "gate_sigmoid": 10, "other": 10}


def test_roles_by_order_where_products_and_layers_match() -> None:
    events = in_a_row(
        "quantise_rows_kernel", "linear_kernel", "add_splits_kernel", "decode_kernel",
        "quantise_rows_kernel", "linear_kernel", "linear_kernel",
    )  # fmt: skip
    layers = ["linear.q_proj", "linear.o_proj", "linear.lm_head"]
    spent = spent_by(events, {}, layers)
    assert spent.time_ns == {
        "linear.q_proj": 30, "paged_attention": 10, "linear.o_proj": 20, "linear.lm_head": 10,
    }  # fmt: skip


def test_no_roles_where_other_products_run_beside_the_layers() -> None:
    events = in_a_row("nvjet_tst_128x64", "void gemmSN_NN_kernel", "cublasLt::splitKreduce_kernel")
    assert spent_by(events, {}, ["linear.o_proj"]).time_ns == {"linear": 30}
    both = spent_by(events, {}, ["linear.o_proj", "linear.lm_head"])
    assert both.time_ns == {"linear.o_proj": 10, "linear.lm_head": 20}


def test_what_no_rule_names_is_other() -> None:
    events = in_a_row("Memcpy HtoD (Pinned -> Device)", "void at::native::elementwise_kernel<>")
    assert spent_by(events, {}).time_ns == {"other": 20}
    argmax = "void at::native::reduce_kernel<512, 1, at::native::ArgMaxOps<float>>"
    assert spent_by(in_a_row(argmax), {}).time_ns == {"choose_tokens": 10}


def launched() -> set[str]:
    """Every kernel that the package gives to `launch`."""
    found = set()
    for path in Path(dstune.kernels.__file__).parent.rglob("triton*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_launch = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "launch"
            if is_launch and isinstance(node.args[0], ast.Name):
                found.add(node.args[0].id)
    return found


def test_every_kernel_of_the_engine_has_its_operation() -> None:
    assert launched() == {*KERNELS, *PREPARING}


@pytest.mark.parametrize("operation", sorted({one for some in KERNELS.values() for one in some}
                                             | set(TORCH.values())))  # fmt: skip
def test_every_operation_has_its_class(operation: str) -> None:
    assert class_of(operation)
