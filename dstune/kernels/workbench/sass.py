"""What a compiled kernel is made of, read by the tools that Triton's wheel bundles."""

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SHOWN = {
    "HMMA": "tensor core, fp16/bf16/tf32",
    "HGMMA": "warp group, fp16/bf16/tf32",
    "IMMA": "tensor core, int8",
    "IGMMA": "warp group, int8",
    "QMMA": "tensor core, fp8",
    "QGMMA": "warp group, fp8",
    "LDGSTS": "cp.async",
    "UTMALDG": "TMA load",
}
"""Opcodes worth counting; the rest is arithmetic, plain loads and stores."""


@dataclass(frozen=True)
class Anatomy:
    """Resources and instructions of one kernel."""

    num_registers: int  # per thread
    num_spill_stores: int  # instructions that write local memory
    num_spill_loads: int
    kinds: dict[str, int]  # opcode of SHOWN -> instructions
    num_wide_loads: int  # LDG/LDGSTS of 16 bytes a thread
    num_loads: int  # all LDG and LDGSTS
    num_instructions: int


def dissect(cubin: bytes) -> Anatomy:
    """Disassemble a cubin with one kernel.

    A spill is counted by its instructions (STL, LDL): Triton has no local arrays, so nothing else
    touches local memory.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [_cuobjdump(), "-res-usage", "-sass", file.name],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
    return read(text)


def read(text: str) -> Anatomy:
    """Read what `cuobjdump -res-usage -sass` prints."""
    registers = re.search(r"\bREG:(\d+)", text)
    if registers is None:
        raise ValueError(f"cuobjdump prints no register count: {text[:200]!r}")
    opcodes = re.findall(
        r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", text, re.MULTILINE
    )
    counts = Counter(opcode.split(".")[0] for opcode in opcodes)
    loads = [opcode for opcode in opcodes if opcode.split(".")[0] in ("LDG", "LDGSTS")]
    return Anatomy(
        num_registers=int(registers[1]),
        num_spill_stores=counts["STL"],
        num_spill_loads=counts["LDL"],
        kinds={name: counts[name] for name in SHOWN if counts[name]},
        num_wide_loads=sum(".128" in opcode for opcode in loads),
        num_loads=len(loads),
        num_instructions=len(opcodes),
    )


@cache
def _cuobjdump() -> str:
    from triton import knobs

    path = str(knobs.nvidia.cuobjdump.path)
    if not Path(path).is_file():
        raise FileNotFoundError(f"no cuobjdump at {path}: reinstall triton")
    return path
