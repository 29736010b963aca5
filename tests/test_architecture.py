"""Who may import whom: the rules of the house, held by parsing every import of the package."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "dstune"
LEAVES = {"errors", "knobs", "architecture", "__init__"}
TRUNK = {"target", "load", "stats", "measure", "profile"}

MAY_IMPORT: dict[str, set[str]] = {
    # the serving trunk
    "server": {"engine", "model", "kernels"},
    "engine": {"model", "kernels"},
    "model": {"kernels"},
    "kernels": set(),
    # the measuring trunk; a target carries out load plans and returns raw samples
    "tune": TRUNK,
    "gate": {"tune", *TRUNK},  # its runs are measured at the bench that trials are
    "load": {"measure", "profile"},
    "stats": {"measure"},
    "report": {"stats", "measure"},
    "target": {"profile", "load", "measure"},
    "measure": set(),
    "profile": set(),
    "kv": {"load", "measure", "stats", "profile"},
    "cli": {"tune", "gate", "report", "kv", *TRUNK, "server", "kernels", "model"},
    "__main__": {"cli"},
}
"""Part of the package -> other parts that it may import, beside itself and the leaves."""

ALSO = {"kv/validate.py": {"engine", "model"}}  # it compares logits
ONLY_IN = {
    "torch": {"server", "engine", "model", "kernels"},
    "triton": {"server", "engine", "model", "kernels"},
    "typer": {"cli"},
    "rich": {"cli", "report"},
}
EXCEPTIONS = {("torch", "kv/validate.py")}
LOAD_PROCESS = "load/client/"  # runs inside Locust's processes, nowhere else


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    inside = path.relative_to(PACKAGE)
    return inside.parts[0] if len(inside.parts) > 1 else inside.stem


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports anywhere, also inside functions, by its full name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            if node.module == "dstune":
                yield from (f"dstune.{alias.name}" for alias in node.names)
            else:
                yield node.module


@pytest.mark.parametrize("path", modules(), ids=lambda one: str(one.relative_to(PACKAGE)))
def test_imports_follow_the_house_rules(path: Path) -> None:
    part = part_of(path)
    shown = str(path.relative_to(PACKAGE))
    for name in imports(path):
        root, *rest = name.split(".")
        if root == "dstune":
            other = rest[0] if rest else "__init__"
            if not (PACKAGE / other).is_dir() and other not in LEAVES:
                other = "__init__"  # a name of the package itself, such as its version
            if part in LEAVES:
                assert other in LEAVES, f"{shown} is a leaf and imports {name}"
            elif other != part and other not in LEAVES:
                allowed = MAY_IMPORT[part] | ALSO.get(shown, set())
                assert other in allowed, f"{shown} may not import {name}"
        elif root in ONLY_IN and (root, shown) not in EXCEPTIONS:
            assert part in ONLY_IN[root], f"{shown} may not import {root}"
        elif root in ("locust", "gevent"):
            assert shown.startswith(LOAD_PROCESS), f"{shown} may not import {root}"


def test_every_part_has_its_rule() -> None:
    folders = {one.name for one in PACKAGE.iterdir() if (one / "__init__.py").is_file()}
    assert folders <= set(MAY_IMPORT)


def test_no_module_is_called_utils_or_common() -> None:
    assert [one for one in modules() if one.stem in ("utils", "common", "helpers")] == []
