"""Every kernel's cases, collected from the operations' folders."""

import re
from collections.abc import Iterable, Sequence
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

    `only` keeps those of a folder or operation called like one of its words, or else those whose
    "folder/operation-name" contains it; raises UsageError for a word that fits none.
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
    if not only:
        return list(named.values())
    wanted: set[str] = set()
    for word in only:
        fitting = _fitting(word, named)
        if not fitting:
            folders = ", ".join(dict.fromkeys(name.split("/")[0] for name in named))
            raise UsageError(f"no case contains {word!r}; the folders are {folders}")
        wanted |= fitting
    return [one for name, one in named.items() if name in wanted]


def _fitting(word: str, names: Iterable[str]) -> set[str]:
    """Return the names that a word means: a folder's or operation's cases, else any with it."""
    whole = {name for name in names if word in re.split("[/-]", name)[:2]}
    return whole or {name for name in names if word in name}
