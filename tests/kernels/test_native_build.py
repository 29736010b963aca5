"""Building the native library: its cache, its errors, its OpenMP; and choosing a backend."""

import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from dstune.errors import UsageError
from dstune.kernels import native
from dstune.kernels import select as selection
from dstune.kernels.native import build as building
from dstune.kernels.select import select


def _in_a_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_there_is_one_openmp_runtime() -> None:
    """Two would spin against each other; the library links the one that torch brought."""
    code = (
        "import torch; from dstune.kernels import native; native.load();"
        "torch.randn(99, 99) @ torch.randn(99, 99);"
        "print(len({l.split()[-1] for l in open('/proc/self/maps') if 'omp' in l}))"
    )
    assert _in_a_process(code) == "1"


def test_without_a_compiler_the_error_names_the_package_and_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    with pytest.raises(UsageError, match=r"apt install g\+\+.*backend: reference"):
        building.build()


def test_a_cache_that_cannot_be_written_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="set XDG_CACHE_HOME to a folder"):
        building.build()


def test_a_failing_compiler_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UsageError, match="cannot build the native kernels"):
        building.build("no-such-machine")
    assert list(building.cache_folder().iterdir()) == []


def test_two_builds_at_once_leave_one_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = tmp_path / "small" / "cpu.cpp"
    source.parent.mkdir()
    source.write_text('extern "C" void f() {}\n')
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(building, "sources", lambda: [source])
    with ThreadPoolExecutor(4) as pool:
        built = set(pool.map(lambda _: building.build(), range(4)))
    assert list(building.cache_folder().iterdir()) == list(built)
    before = next(iter(built)).stat().st_mtime_ns
    assert building.build().stat().st_mtime_ns == before  # and the next process finds it


def test_the_key_follows_sources_and_instruction_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = tmp_path / "small" / "cpu.cpp"
    source.parent.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(building, "sources", lambda: [source])
    paths = set()
    for text, march in (("int a;", "native"), ("int b;", "native"), ("int b;", "x86-64")):
        source.write_text(text)
        paths.add(building.build(march))
    assert len(paths) == 3


@pytest.mark.parametrize(
    "arguments", [(0, 2, 0, 0, 1, 0), (None, 2, 0, 0, 1, 0, 1), (0, 2.5, 0, 0, 1, 0, 1)],
    ids=["too few", "no pointer", "no integer"],
)  # fmt: skip
def test_arguments_that_the_declaration_does_not_have_are_refused(
    arguments: tuple[float | None, ...],
) -> None:
    """gate_up, stride, out, tokens, features, dtype, threads; no tokens, so nothing is read."""
    silu_and_mul = native.load().silu_and_mul
    silu_and_mul(0, 2, 0, 0, 1, 0, 1)
    with pytest.raises(struct.error):
        silu_and_mul(*arguments)


def test_choosing_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    assert select("auto", device).backend == select("cpu", device).backend == "cpu"
    assert select("reference", device).backend == "reference"
    assert select("triton", device).backend == "triton", "interpreted, as tests/conftest.py says"
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(UsageError, match="needs a CUDA device; TRITON_INTERPRET=1"):
        select("triton", device)
    with pytest.raises(UsageError, match="choose auto, triton, cpu, reference"):
        select("gpu", device)
    with pytest.raises(UsageError, match="cannot run on cuda"):
        select("cpu", torch.device("cuda"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a CUDA device")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="no cuda here"):
        select("auto", torch.device("cuda"))


def test_every_operation_serves_every_backend() -> None:
    for name, table in selection._OPERATIONS.items():
        assert set(table) == set(selection.BACKENDS), name
