"""Every kernel's cases, collected from the operations' folders."""

from collections.abc import Sequence
from importlib import import_module

from dstune.errors import UsageError
from dstune.kernels.workbench.case import Case

MODULES = (
    "norm.cases",
    "rope.cases",
    "activation.cases",
    "cache_io.cases",
    "attention.cases_decode",
    "attention.cases_flash",
    "linear.cases",
    "gating.cases",
    "experts.cases",
    "sampling.cases",
)
"""Modules of `dstune.kernels` with `checks()` and `benches()`; a missing one is an error."""


def checks(only: Sequence[str] = ()) -> list[Case]:
    """Return the small cases that prove the kernels; `only` as in `benches`."""
    return _collect("checks", only)


def benches(only: Sequence[str] = ()) -> list[Case]:
    """Return the cases of real sizes.

    `only` keeps those whose "folder/operation-name" contains one of the words; raises UsageError
    for a word that fits none.
    """
    return _collect("benches", only)


def _collect(kind: str, only: Sequence[str]) -> list[Case]:
    named: dict[str, Case] = {}
    for module in MODULES:
        folder = module.split(".")[0]
        found = import_module(f"dstune.kernels.{module}")
        for case in getattr(found, kind)():
            name = f"{folder}/{case.id}"
            if name in named:
                raise ValueError(f"two {kind} are called {name}")
            named[name] = case
    for word in only:
        if not any(word in name for name in named):
            folders = ", ".join(dict.fromkeys(name.split("/")[0] for name in named))
            raise UsageError(f"no case contains {word!r}; the folders are {folders}")
    return [one for name, one in named.items() if not only or any(word in name for word in only)]
