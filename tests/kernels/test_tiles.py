"""The tile table: files, nearest entries, and the rule."""

import json
from pathlib import Path

import pytest

from dstune.errors import UsageError
from dstune.kernels.device import TARGETS
from dstune.kernels.experts.tiles import SHIPPED, Tile, TileKey, TileTable, rule

KEY = TileKey(64, 1408, "some GPU", "bf16")
SMALL, LARGE = Tile(16, 64, 128, 1, 4, 4), Tile(128, 128, 64, 8, 8, 3)


def test_the_nearest_number_of_tokens_by_ratio() -> None:
    table = TileTable({KEY: {1: SMALL, 64: LARGE}})
    assert [table.find(KEY, tokens) for tokens in (0, 1, 7)] == [SMALL] * 3
    assert [table.find(KEY, tokens) for tokens in (9, 64, 10_000)] == [LARGE] * 3
    assert table.find(TileKey(64, 1408, "some GPU", "int8"), 1) is None


def test_saving_keeps_what_other_keys_have(tmp_path: Path) -> None:
    path = tmp_path / "new" / "tiles.json"
    other = TileKey(8, 256, "some GPU", "int8")
    TileTable({KEY: {1: SMALL}, other: {1: SMALL}}).save(path)
    TileTable({KEY: {64: LARGE}}).save(path)
    assert TileTable.load(path) == TileTable({KEY: {64: LARGE}, other: {1: SMALL}})
    assert [one.name for one in path.parent.iterdir()] == ["tiles.json"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"entries": []}', '{"schema_version": 9, "entries": []}',
     '{"schema_version": 1, "entries": [{"num_experts": 1, "tiles": {}}]}',
     '{"schema_version": 1, "entries": [{"tiles": {"1": {"block_q": 1}}}]}'],
)  # fmt: skip
def test_a_broken_table_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tiles.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=str(path)):
        TileTable.load(path)


def test_the_shipped_table_loads() -> None:
    assert json.loads(SHIPPED.read_text())["schema_version"] == 1
    TileTable.load(SHIPPED)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(
    ("precision", "operand_bytes"),
    [("bf16", (2, 2)), ("fp32", (4, 4)), ("int8", (1, 1)), ("fp8", (1, 1)),
     ("int8_weight_only", (2, 1)), ("int8_weight_only", (4, 1))],
)  # fmt: skip
def test_the_rules_tiles_fit(name: str, precision: str, operand_bytes: tuple[int, int]) -> None:
    gpu = TARGETS[name]
    for pairs in (0.1, 5, 20, 100, 1000):
        tile = rule(pairs, precision, operand_bytes, gpu)
        assert tile.num_stages >= 2
        assert tile.shared_memory_bytes(*operand_bytes) <= gpu.shared_memory_bytes
        assert tile.block_m >= 16 and tile.block_n >= 32  # half of it goes to gate, half to up
        assert precision != "int8" or tile.block_k % 64 == 0
