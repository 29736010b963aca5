"""The operations that a model is made of, each with a reference and faster backends.

A model asks `select.select(backend, device)` once and calls nothing else here. One folder per
operation: `op.py` (a table from backend to function), `reference.py` (clear torch, any device),
`triton.py` (kernels for GPUs), `cpu.py` and `cpu.cpp` (native code that `native/` builds at first
use), `cases.py` (what proves and what times them, for `workbench/`).
"""
