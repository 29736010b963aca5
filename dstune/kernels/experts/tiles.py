"""Which tile the routed experts run with: measured where a table has it, else by rule.

`dstune kernels tune` measures tiles on a GPU and writes them to the user's table; tiles.json
beside this file is the same kind of table, shipped. Without an entry `rule` decides, and
`TritonExperts.choose` says so.
"""

import json
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path

from dstune.errors import UsageError
from dstune.kernels.device import Gpu

SHIPPED = Path(__file__).with_name("tiles.json")
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Tile:
    """How both grouped products are cut into programs."""

    block_m: int  # (token, choice) pairs of one expert
    block_n: int  # rows of weight; the first product takes half of them from gate, half from up
    block_k: int
    group_m: int  # row tiles that walk the weights together
    num_warps: int
    num_stages: int

    def shared_memory_bytes(self, x_bytes: int, weight_bytes: int) -> int:
        """Return at most what a block needs, for operands of so many bytes per value.

        Every stage holds both operands; Hopper also needs a weight converted to x's type. Once
        they are done with, the sums may change their order through the same memory.
        """
        stage = self.block_m * x_bytes + self.block_n * weight_bytes
        converted = self.block_n * x_bytes if weight_bytes < x_bytes else 0
        operands = self.block_k * (self.num_stages * stage + converted)
        return max(operands, 4 * self.block_m * self.block_n)


@dataclass(frozen=True)
class TileKey:
    """What the best tile depends on, beside the number of tokens."""

    num_experts: int
    width: int  # intermediate size of one expert
    device: str  # the GPU's name
    precision: str


@dataclass(frozen=True)
class TileTable:
    """Measured tiles: key -> number of tokens -> tile."""

    entries: Mapping[TileKey, Mapping[int, Tile]] = field(default_factory=dict)

    def find(self, key: TileKey, num_tokens: int) -> Tile | None:
        """Return the tile measured at the nearest number of tokens, by ratio."""
        tiles = self.entries.get(key)
        if not tiles:
            return None
        nearest = min(tiles, key=lambda tuned: abs(math.log(tuned / max(num_tokens, 1))))
        return tiles[nearest]

    def merged(self, newer: "TileTable") -> "TileTable":
        """Return both; where both have a key the newer one's tiles replace all of the older's."""
        return TileTable({**self.entries, **newer.entries})

    def save(self, path: Path) -> None:
        """Write the entries into the table at path, beside what other keys it holds."""
        together = (self.load(path) if path.exists() else TileTable()).merged(self)
        entries = [
            {**asdict(key), "tiles": {str(n): asdict(tile) for n, tile in sorted(tiles.items())}}
            for key, tiles in together.entries.items()
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump({"schema_version": SCHEMA_VERSION, "entries": entries}, file, indent=1)
        Path(file.name).replace(path)  # a reader sees the old table or the new one

    @classmethod
    def load(cls, path: Path) -> "TileTable":
        """Read a table; raises UsageError, naming the file, for one that is not usable."""
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
            if read["schema_version"] != SCHEMA_VERSION:
                raise ValueError(f"schema_version is {read['schema_version']}")
            entries = {}
            for entry in read["entries"]:
                tiles = entry.pop("tiles")
                entries[TileKey(**entry)] = {int(n): Tile(**tile) for n, tile in tiles.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"tile table {path} is not usable ({error}): delete it and run "
                "`dstune kernels tune` again"
            ) from error
        return cls(entries)


def user_file() -> Path:
    """Return where `dstune kernels tune` writes; need not exist."""
    cache_home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache_home) / "dstune" / "tiles.json"


@cache
def _tables(user: Path) -> tuple[tuple[str, TileTable], ...]:
    tables = [("user", TileTable.load(user))] if user.exists() else []
    return (*tables, ("shipped", TileTable.load(SHIPPED)))


def forget_tables() -> None:
    """Read the tables again at the next choice: one was written."""
    _tables.cache_clear()


def measured(key: TileKey, num_tokens: int) -> tuple[Tile, str] | None:
    """Return a measured tile and the table it stands in, user or shipped; the user's goes first."""
    for source, table in _tables(user_file()):
        tile = table.find(key, num_tokens)
        if tile is not None:
            return tile, source
    return None


def rule(pairs_per_expert: float, precision: str, operand_bytes: tuple[int, int], gpu: Gpu) -> Tile:
    """Return a sound tile that nobody measured; operand_bytes per value of x and of weight.

    Few pairs are bound by reading the weights: narrow tiles, deep pipelines. Many are bound by
    arithmetic: large tiles, but not larger than an expert's pairs fill.
    """
    x_bytes, weight_bytes = operand_bytes
    if pairs_per_expert <= 12:
        tile = Tile(16, 64, 256 // weight_bytes, 1, 4, 4)
    elif pairs_per_expert <= 24:
        tile = Tile(32, 64, 256 // weight_bytes, 4, 4, 4)
    elif pairs_per_expert <= 160:
        tile = Tile(64, 128, 128 // x_bytes, 8, 4, 3)
    else:
        tile = Tile(128, 128, 128 // x_bytes, 8, 8, 3)
    if x_bytes == 4:  # fp32 products have no tensor core, only registers
        tile = replace(tile, block_m=min(tile.block_m, 32), block_n=64, block_k=32, num_warps=4)
    if precision == "int8" and tile.block_m >= 64:  # int32 sums of one group beside fp32's
        tile = replace(tile, block_k=64, num_warps=8, num_stages=4)
    while tile.shared_memory_bytes(*operand_bytes) > gpu.shared_memory_bytes:
        tile = replace(tile, num_stages=tile.num_stages - 1)
    return tile
