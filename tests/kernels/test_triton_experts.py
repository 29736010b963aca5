"""What the Triton experts promise beside the cases of `dstune kernels verify`."""

import pytest
import torch

from dstune.errors import UsageError
from dstune.kernels.device import SM_80, SM_90, pretending
from dstune.kernels.experts import reference, tiles, triton_sort
from dstune.kernels.experts.tiles import Tile, TileKey, TileTable
from dstune.kernels.experts.triton import pack_experts
from dstune.kernels.experts.triton_sort import sort_pairs
from dstune.kernels.launch import recording

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="tensors of the CPU")
TILES = [Tile(16, 32, 32, 1, 4, 2), Tile(32, 64, 64, 2, 4, 3), Tile(64, 128, 64, 8, 8, 3)]


def weights(num_experts: int, hidden: int, width: int) -> tuple[list[torch.Tensor], ...]:
    gate_up = [torch.randn(2 * width, hidden) / hidden**0.5 for _ in range(num_experts)]
    return gate_up, [torch.randn(hidden, width) / width**0.5 for _ in range(num_experts)]


@interpreted
@pytest.mark.parametrize("alone", [True, False], ids=["one_program", "spans"])
@pytest.mark.parametrize("block_m", [16, 64])
@pytest.mark.parametrize("num_tokens", [2, 50, 333])
def test_pairs_are_sorted_stably_into_tiles_of_one_expert(
    num_tokens: int, block_m: int, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_experts, top_k = 33, 3
    monkeypatch.setattr(triton_sort, "_ALONE", 10_000 if alone else 0)
    monkeypatch.setattr(triton_sort, "_MAX_SPANS", 3)
    monkeypatch.setattr(triton_sort, "_COMPARED", 64 * 64)  # chunks of 64, several to a span
    ids = torch.randint(0, num_experts - 1, (num_tokens, top_k))
    ids[0] = 4
    found = sort_pairs(ids, num_experts, block_m)
    flat = ids.flatten().tolist()
    expected = []
    for expert in range(num_experts):
        pairs = [pair for pair, chosen in enumerate(flat) if chosen == expert]
        for first in range(0, len(pairs), block_m):
            expected.append((expert, pairs[first : first + block_m]))
    assert len(expected) <= found.num_tiles == len(found.expert)
    for tile, (expert, pairs) in enumerate(expected):
        assert found.expert[tile] == expert
        assert found.num_rows[tile] == len(pairs)
        assert found.pairs[tile * block_m :][: len(pairs)].tolist() == pairs
    assert found.expert[len(expected) :].tolist() == [-1] * (found.num_tiles - len(expected))


@interpreted
@pytest.mark.parametrize("precision", ["fp32", "int8", "int8_weight_only", "fp8"])
def test_every_tile_gives_the_same(precision: str) -> None:
    gate_up, down = weights(5, 70, 48)
    ours = pack_experts(gate_up, down, precision, torch.float32)
    x, ids = torch.randn(23, 70), torch.rand(23, 5).topk(2).indices
    share = torch.rand(23, 2)
    expected = reference.pack_experts(gate_up, down, precision, torch.float32)(x, share, ids)
    for tile in TILES if precision != "int8" else TILES[1:]:
        found = ours.run(x, share, ids, tile)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@interpreted
def test_a_token_alone_gives_what_it_gives_among_others() -> None:
    gate_up, down = weights(6, 40, 24)
    ours = pack_experts(gate_up, down, "int8_weight_only", torch.float32)
    x, ids, share = torch.randn(8, 40), torch.rand(8, 6).topk(2).indices, torch.rand(8, 2)
    together = ours.run(x, share, ids, TILES[0])
    for token in range(8):
        one = slice(token, token + 1)
        assert torch.equal(ours.run(x[one], share[one], ids[one], TILES[0]), together[one])


def test_a_step_launches_the_same_whatever_the_ids() -> None:
    """Nothing is read on the host: tensors without storage will do."""
    meta = torch.device("meta")
    stacks = [[torch.empty(shape, device=meta)] * 8 for shape in ((64, 32), (32, 32))]
    with recording(SM_90) as launches:
        ours = pack_experts(stacks[0], stacks[1], "int8", torch.bfloat16)
        x = torch.empty(5, 32, dtype=torch.bfloat16, device=meta)
        share = torch.empty(5, 2, device=meta)
        out = ours(x, share, torch.empty(5, 2, dtype=torch.int64, device=meta))
    assert out.shape == x.shape
    assert [one.kernel.__name__ for one in launches] == [
        "sort_kernel", "quantise_groups_kernel", "grouped_kernel", "quantise_groups_kernel",
        "grouped_kernel", "combine_kernel",
    ]  # fmt: skip
    assert launches[2].grid == (1 + 8,)  # tiles that 10 pairs of 8 experts can fill, one column


def test_the_users_table_goes_before_the_rule(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    gate_up, down = weights(4, 16, 16)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tiles.forget_tables()
    with pretending(SM_90):
        ours = pack_experts(gate_up, down, "fp32", torch.float32)
        x = torch.randn(3, 16)
        assert ours.choose(x, 2)[1] == "rule"
        table = TileTable({TileKey(4, 16, "sm_90", "fp32"): {1: TILES[0], 64: TILES[1]}})
        table.save(tiles.user_file())
        tiles.forget_tables()
        assert ours.choose(x, 2) == (TILES[0], "user")
        assert ours.choose(torch.randn(40, 16), 2) == (TILES[1], "user")
    tiles.forget_tables()


def test_fp8_needs_a_device_that_has_it() -> None:
    gate_up, down = weights(2, 16, 16)
    with pretending(SM_80), pytest.raises(UsageError, match=r"compute capability 8\.9"):
        pack_experts(gate_up, down, "fp8", torch.bfloat16)
