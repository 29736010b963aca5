"""Measure: what a run was measured on, so that runs are compared only where that makes sense."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

import dstune

_PACKAGES = ("torch", "triton", "numpy", "transformers", "vllm", "sglang")
_MUST_AGREE = (("cpu", "model"), ("cpu", "flags_digest"), ("cpu", "usable_cores"), ("gpus",),
               ("versions", "torch"), ("versions", "dstune"))  # fmt: skip


def fingerprint() -> dict[str, Any]:
    """The environment as plain data; versions are read from metadata, nothing is imported."""
    return {
        "cpu": _cpu(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": _gpus(),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {"dstune": dstune.__version__, **_versions()},
        "git_revision": _git_revision(),
    }


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """In what two environments differ that makes their figures not comparable."""
    found = []
    for path in _MUST_AGREE:
        before, after = _at(old, path), _at(new, path)
        if before != after:
            found.append(f"{'.'.join(path)}: {before} then, {after} now")
    return found


def _at(data: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = data
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _cpu() -> dict[str, Any]:
    model, flags = platform.processor() or platform.machine(), ""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n")
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):
            model = value.strip()
        if key.strip() in ("flags", "Features"):
            flags = " ".join(sorted(value.split()))
            break
    has_affinity = hasattr(os, "sched_getaffinity")
    return {
        "model": model,
        "flags_digest": hashlib.sha256(flags.encode()).hexdigest()[:16],
        "cores": psutil.cpu_count() or 1,
        "usable_cores": len(os.sched_getaffinity(0)) if has_affinity else psutil.cpu_count(),
    }


def _gpus() -> list[str]:
    """Name, memory and driver of each GPU, where nvidia-smi tells them."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = "--query-gpu=name,memory.total,driver_version"
    listed = _output(["nvidia-smi", query, "--format=csv,noheader"]) or ""
    return [line for line in listed.split("\n") if line]


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git_revision() -> str | None:
    """The revision of dstune's own sources, with `+` for changed ones; None when not from git."""
    folder = str(Path(dstune.__file__).parent)
    # a site-packages inside somebody's repository is not our revision
    if _output(["git", "-C", folder, "ls-files", "--error-unmatch", "errors.py"]) is None:
        return None
    revision = _output(["git", "-C", folder, "rev-parse", "HEAD"])
    changed = _output(["git", "-C", folder, "status", "--porcelain", "-uno", "--", "."])
    return f"{revision}+" if revision and changed else revision


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
