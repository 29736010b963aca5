"""The operations that a model is made of, each with a reference and faster backends.

A model asks `select.select(backend, device)` once and calls nothing else here. One folder per
operation: `op.py` (a dict from backend to function), `reference.py` (clear torch, any device),
`cpu.py` and `cpu.cpp` (native code that `native/` builds at first use).
"""
