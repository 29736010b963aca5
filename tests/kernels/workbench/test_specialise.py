"""Specialisation beside Triton's own, argument by argument."""

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton.backends.compiler import BaseBackend
from triton.runtime.jit import KernelParam, native_specialize_impl

from dstune.kernels.launch import Launch
from dstune.kernels.workbench.specialise import Specialised, specialise

ARGUMENTS = {
    "none": None,
    "true": True,
    "one": 1,
    "zero": 0,
    "seven": 7,
    "sixteen": 16,
    "negative": -32,
    "least_i32": -(2**31),
    "beyond_i32": 2**31,
    "beyond_i32_odd": 2**40 + 1,
    "beyond_i64": 2**63,
    "float": 1.0,
    "fp32": torch.empty(4, device="meta"),
    "bf16": torch.empty(4, dtype=torch.bfloat16, device="meta"),
    "fp16": torch.empty(4, dtype=torch.float16, device="meta"),
    "fp8": torch.empty(4, dtype=torch.float8_e4m3fn, device="meta"),
    "int8": torch.empty(4, dtype=torch.int8, device="meta"),
    "int32": torch.empty(4, dtype=torch.int32, device="meta"),
    "int64": torch.empty(4, dtype=torch.int64, device="meta"),
    "bool": torch.empty(4, dtype=torch.bool, device="meta"),
    "aligned_view": torch.empty(32, device="meta")[8:],
    "odd_view": torch.empty(32, device="meta")[1:],
}


def parameter(name: str, annotation: Any = inspect.Parameter.empty, **options: Any) -> KernelParam:
    one = inspect.Parameter(
        name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation,
        default=options.pop("default", inspect.Parameter.empty),
    )  # fmt: skip
    return KernelParam(0, one, options.pop("frozen", False), options.pop("unaligned", False))


def specialised(arguments: dict[str, Any], *parameters: KernelParam) -> Specialised:
    kernel = SimpleNamespace(params=list(parameters), __name__="k", __module__="m")
    return specialise(Launch(kernel, (1,), arguments, num_warps=4, num_stages=3))


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("is_frozen", [False, True], ids=["", "do_not_specialize"])
def test_as_triton_does(name: str, is_frozen: bool) -> None:
    value = ARGUMENTS[name]
    kind, key = native_specialize_impl(BaseBackend, value, False, not is_frozen, True)
    found = specialised({"a": value}, parameter("a", frozen=is_frozen))
    assert found.signature == {"a": kind}
    assert found.aligned == (("a",) if key == "D" else ())
    assert ("a" in found.constants) == (kind == "constexpr")


def test_alignment_can_be_declined() -> None:
    found = specialised({"a": 32}, parameter("a", unaligned=True))
    assert found.signature == {"a": "i32"} and found.aligned == ()


def test_constants_keep_their_values_and_defaults() -> None:
    found = specialised(
        {"BLOCK": 16}, parameter("BLOCK", "tl.constexpr"),
        parameter("STAGES", "tl.constexpr", default=2),
    )  # fmt: skip
    assert found.signature == {"BLOCK": "constexpr", "STAGES": "constexpr"}
    assert found.constants == {"BLOCK": 16, "STAGES": 2}
    assert found.aligned == ()


def test_launches_share_a_version_when_only_values_differ() -> None:
    def key(n: int, block: int = 16) -> Any:
        return specialised({"n": n, "BLOCK": block}, parameter("n"),
                           parameter("BLOCK", "tl.constexpr")).key  # fmt: skip

    assert key(32) == key(4096)
    assert len({key(32), key(33), key(1), key(32, block=32)}) == 4


def test_an_unknown_argument_is_named() -> None:
    with pytest.raises(TypeError, match="argument a of a kernel is a str"):
        specialised({"a": "text"}, parameter("a"))
