"""What there is to prove: enough of it, every operation, and the odd cases that break kernels."""

import ast
import importlib
import re
from pathlib import Path

import pytest
import torch

import dstune.kernels
from dstune.errors import UsageError
from dstune.kernels.device import SM_90
from dstune.kernels.launch import recording
from dstune.kernels.select import _OPERATIONS, select
from dstune.kernels.workbench import catalogue

CHECKS = catalogue.checks()
BENCHES = catalogue.benches()

MUST_BE_PROVED = {
    "one token": r"^rms_norm-fp32-1x|^pack_linear-.*-m1-",
    "one token, attention": r"^paged_attention-decode-.*-1of1$",
    "one token, experts": r"^pack_experts-.*-t1-",
    "one block": r"^paged_attention-prefill-.*-block16-16of16$",
    "block size 16": r"^paged_attention-decode-.*-block16-",
    "block size 32": r"^paged_attention-decode-.*-block32-",
    "block size 64": r"^paged_attention-decode-.*-block64-",
    "block size 128": r"^paged_attention-decode-.*-block128-",
    "block size 16, latent": r"^latent_attention-.*-block16-",
    "block size 32, latent": r"^latent_attention-.*-block32-",
    "block size 64, latent": r"^latent_attention-.*-block64-",
    "block size 128, latent": r"^latent_attention-.*-block128-",
    "block size 128, prefill": r"^paged_attention-prefill-.*-block128-",
    "a length that ends inside a block": r"^paged_attention-decode-.*-block16-.*1of21",
    "a length that ends inside a block, prefill": r"^paged_attention-prefill-.*block16-20of37",
    "empty slots": r"^paged_attention-decode-.*1of0.*-pad2$",
    "empty slots, latent": r"^latent_attention-.*1of0.*-pad2$",
    "empty slots, prefill": r"^paged_attention-prefill-.*1of0.*-pad2$",
    "128 query heads": r"^paged_attention-decode-.*-h128_",
    "128 query heads, latent": r"^latent_attention-.*-h128_",
    "128 query heads, prefill": r"^paged_attention-prefill-.*-h128_",
    "group of 1": r"^paged_attention-decode-.*-h1_1_",
    "group of 3": r"^paged_attention-decode-.*-h3_1_",
    "group of 4": r"^paged_attention-decode-.*-h4_1_",
    "group of 8": r"^paged_attention-decode-.*-h8_1_",
    "group of 1, prefill": r"^paged_attention-prefill-.*-h2_2_",
    "group of 3, prefill": r"^paged_attention-prefill-.*-h3_1_",
    "group of 4, prefill": r"^paged_attention-prefill-.*-h4_1_",
    "group of 8, prefill": r"^paged_attention-prefill-.*-h8_1_",
    "head dimension 40": r"^paged_attention-decode-.*_40-",
    "an expert without tokens": r"^pack_experts-.*-last_expert_idle$",
    "an expert with all tokens": r"^pack_experts-.*-one_expert_takes_all$",
    "huge block ids, decode": r"^paged_attention-decode-.*-far$",
    "huge block ids, latent": r"^latent_attention-.*-far$",
    "huge block ids, prefill": r"^paged_attention-prefill-.*-far$",
    "huge block ids, written": r"^write_kv-.*-beyond_2_31$",
    "huge block ids, latent written": r"^rotate_and_write_latent-.*-beyond_2_31$",
    "fully masked rows": r"^dense_attention-.*-diagonal_-20-",
    "MLA's head dimensions": r"^dense_attention-.*_192_128-",
    "MLA's real latent": r"^latent_attention-decode-.*-h16_512_64-",
    "int8 cache": r"^paged_attention-decode-.*-kv_int8-",
    "fp8 cache": r"^paged_attention-decode-.*-kv_fp8-",
    "int8 latent": r"^latent_attention-.*-kv_int8-",
    "ties of the gate": r"^gate_sigmoid-.*-tied",
    "sampling filters together": r"^sample-.*-mixed",
}


def test_at_least_200_cases_that_a_cpu_can_prove() -> None:
    assert sum(case.dtype != torch.bfloat16 for case in CHECKS) >= 200


@pytest.mark.parametrize("what", MUST_BE_PROVED)
def test_what_breaks_kernels_is_among_them(what: str) -> None:
    found = [case for case in CHECKS if re.search(MUST_BE_PROVED[what], case.id)]
    assert any(case.dtype != torch.bfloat16 for case in found)


def test_slots_that_are_skipped_are_among_the_written() -> None:
    written = [case for case in CHECKS if case.id == "write_kv-fp32-kv_int8-6x3x17"]
    assert (written[0].make(torch.device("cpu"))["slots"] == -1).any()


KERNELS = Path(dstune.kernels.__file__).parent
META = torch.device("meta")


@pytest.mark.parametrize("operation", _OPERATIONS)
def test_every_operation_is_proved(operation: str) -> None:
    table = _OPERATIONS[operation]
    if table["triton"].load() is table["reference"]:
        return  # torch's own gather serves both
    assert any(case.operation == operation for case in CHECKS)


def launched_kernels() -> set[str]:
    """Every function that a wrapper hands to `launch`, by reading the sources."""
    names = set()
    for path in KERNELS.glob("*/triton*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "launch":
                assert isinstance(node.args[0], ast.Name), f"{path}: name the kernel"
                names.add(node.args[0].id)
    return names


def test_every_kernel_is_compiled() -> None:
    with recording(SM_90) as launches:
        kernels = select("triton", META)
        for case in BENCHES:
            case.call(kernels, case.make(META))
    assert {one.kernel.__name__ for one in launches} == launched_kernels()


def test_every_module_of_cases_is_listed() -> None:
    found = {f"{path.parent.name}.{path.stem}" for path in KERNELS.glob("*/cases*.py")}
    assert found == set(catalogue.MODULES)


def test_a_missing_module_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "MODULES", ("norm.cases", "nowhere.cases"))
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        catalogue.checks()


def test_two_cases_of_one_name_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    norm = importlib.import_module("dstune.kernels.norm.cases")
    twice = [*norm.checks(), *norm.checks()]
    monkeypatch.setattr(norm, "checks", lambda: twice)
    with pytest.raises(ValueError, match="two checks are called norm/"):
        catalogue.checks()


def test_words_choose_cases_by_folder_and_name() -> None:
    chosen = {case.operation for case in catalogue.checks(["norm/"])}
    assert chosen == {"rms_norm", "add_rms_norm"}
    several = catalogue.checks(["norm/rms", "rope/"])
    assert {case.operation for case in several} == {"rms_norm", "apply_rope"}
    with pytest.raises(UsageError, match="no case contains 'nosuch'; the folders are norm, rope"):
        catalogue.checks(["norm/", "nosuch"])


def test_benches_state_their_cost() -> None:
    assert [case.id for case in BENCHES if case.cost is None] == []


def test_the_name_of_a_folder_means_that_folder() -> None:
    """Names of gates end with "normalised"; who asks for norm does not want them."""
    found = catalogue.checks(["norm"])
    assert {case.operation for case in found} == {"rms_norm", "add_rms_norm"}
    assert {case.operation for case in catalogue.checks(["paged_attention"])} == {"paged_attention"}
    assert all("-far" in case.id for case in catalogue.checks(["-far"]))
