"""Kernels to compile, good and bad; run in a process where Triton compiles: prints JSON."""

import json
import sys

import torch
import triton
import triton.language as tl

from dstune.kernels.device import SM_80, SM_90
from dstune.kernels.launch import launch
from dstune.kernels.workbench.case import Case
from dstune.kernels.workbench.compile import compile_cases


@triton.jit
def matmul(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rows[:, None] * K + k + depth[None, :])
        y = tl.load(b + (k + depth[:, None]) * N + columns[None, :])
        sums = tl.dot(x, y, sums)
    tl.store(c + rows[:, None] * N + columns[None, :], sums)


@triton.jit
def unknown_name(a):
    tl.store(a, nowhere)  # noqa: F821


def case(name, tiles=(64, 64, 32), stages=3, kernel=matmul, needs_fp8=False):
    def make(device):
        return {"a": torch.empty(4096, 4096, dtype=torch.float16, device=device)}

    def call(kernels, inputs):
        if name == "raises":
            raise ValueError("no such tile")
        a = inputs["a"]
        if kernel is matmul:
            bm, bn, bk = tiles
            launch(kernel, (1, 1), a, a, a, 4096, 4096, num_stages=stages, BM=bm, BN=bn, BK=bk)
        else:
            launch(kernel, (1,), a)
        return (a,)

    return Case("matmul", name, torch.float16, make, call, 0.0, needs_fp8=needs_fp8)


CASES = {
    "good": case("good"),
    "same": case("same"),
    "spill": case("spill", (256, 256, 32)),
    "shared": case("shared", (128, 128, 64), stages=9),
    "unknown": case("unknown", kernel=unknown_name),
    "raises": case("raises"),
    "fp8": case("fp8", needs_fp8=True),
}

if __name__ == "__main__":
    import compiled_kernels as imported  # the compiling processes must find the kernels by name
    import crashing_kernel

    workers, *names = sys.argv[1:]
    crash = imported.case("crash", kernel=crashing_kernel.crashing)
    cases = [{**imported.CASES, "crash": crash}[name] for name in names]
    found = compile_cases(cases, [SM_80, SM_90], int(workers), lambda *_: None)
    rows = [
        {
            "arch": one.arch,
            "kernel": one.kernel,
            "cases": one.cases,
            "failure": one.failure,
            "kinds": one.anatomy and one.anatomy.kinds,
            "registers": one.anatomy and one.anatomy.num_registers,
        }
        for one in found.compiled
    ]
    print(json.dumps({"rows": rows, "skipped": found.skipped}))
