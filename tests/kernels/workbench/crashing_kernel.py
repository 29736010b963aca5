"""A kernel whose module ends every compiling process, as LLVM does where it should raise."""

import multiprocessing
import os

import triton

if multiprocessing.current_process().name != "MainProcess":
    os._exit(3)


@triton.jit
def crashing(a):
    pass
