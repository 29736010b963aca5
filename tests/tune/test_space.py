"""The list of trials: complete, legal, each once, restarts few."""

from __future__ import annotations

from collections import Counter

import pytest

from dstune.errors import ProfileError
from dstune.knobs import DEFAULTS, Restart
from dstune.profile.load import parse_profile
from dstune.profile.model import Profile
from dstune.tune.space import plan_space


def profile(extra: str) -> Profile:
    return parse_profile(
        "p.yaml", f"name: x\nworkload: {{prompt_tokens: 40, output_tokens: 8}}\n{extra}"
    )


def test_without_a_search_there_is_the_default() -> None:
    space = plan_space(profile(""))
    assert [(one.trial_id, one.origin, one.changed) for one in space.trials] == [
        ("t000", "default", {})
    ]
    assert space.trials[0].knobs == DEFAULTS


def test_default_then_presets_then_the_grid_each_configuration_once() -> None:
    space = plan_space(profile(
        "knobs: {max_model_len: 512}\n"
        "presets: [{max_num_seqs: 8, precision: int8}, {max_num_seqs: 64}]\n"
        "search: {max_num_seqs: [8, 32], precision: [bf16, int8]}\n"
    ))  # fmt: skip
    changed = [one.changed for one in space.trials]
    assert changed == [
        {},
        {"max_num_seqs": 8, "precision": "int8"},
        {"max_num_seqs": 64},
        {"max_num_seqs": 8},
        {"precision": "int8"},
    ]
    assert {one.knobs["max_model_len"] for one in space.trials} == {512}
    assert Counter(one.origin for one in space.trials) == {"default": 1, "preset": 2, "grid": 2}


def test_expensive_knobs_turn_outermost_whatever_the_profile_s_order() -> None:
    space = plan_space(profile(
        "search: {max_num_seqs: [1, 2, 4], block_size: [16, 32, 64], precision: [int8, bf16]}"
    ))  # fmt: skip
    restarts = Counter(one.restart for one in space.trials[1:])
    assert restarts[Restart.RELOAD] == 1  # bf16 is in force already, so it goes first
    assert restarts[Restart.REBUILD] == 4
    assert len(space.trials) == 1 + 18


def test_illegal_combinations_are_listed_with_their_reason() -> None:
    space = plan_space(
        profile("search: {max_num_seqs: [8, 64], max_num_batched_tokens: [32, 512]}")
    )
    assert [one.changed for one in space.skipped] == [
        {"max_num_seqs": 64, "max_num_batched_tokens": 32}
    ]
    assert "must be at least max_num_seqs (64)" in space.skipped[0].reason
    assert len(space.trials) == 4


def test_nothing_legal_is_an_error() -> None:
    text = "knobs: {max_num_batched_tokens: 4}\nsearch: {max_num_seqs: [8, 64]}"
    with pytest.raises(ProfileError, match="no configuration of this profile is legal"):
        plan_space(profile(text))


def test_an_illegal_default_is_skipped_where_the_search_mends_it() -> None:
    text = "knobs: {max_num_batched_tokens: 4}\nsearch: {max_num_seqs: [2, 4]}"
    space = plan_space(profile(text))
    assert [one.origin for one in space.trials] == ["grid", "grid"]
    assert space.skipped[0].changed == {}


def test_a_preset_may_override_a_fixed_knob() -> None:
    space = plan_space(profile("knobs: {max_model_len: 512}\npresets: [{max_model_len: 4096}]"))
    assert [one.knobs["max_model_len"] for one in space.trials] == [512, 4096]


def test_fewer_trials_than_the_grid_are_spread_over_it() -> None:
    text = ("search: {max_num_seqs: [1, 2, 3, 4, 5, 6, 7, 8], precision: [bf16, int8, fp32]}\n"
            "presets: [{max_num_seqs: 64}]\nbudget: {trials: 12}")  # fmt: skip
    space = plan_space(profile(text))
    assert len(space.trials) == 12
    assert [one.origin for one in space.trials[:2]] == ["default", "preset"]
    assert {one.knobs["precision"] for one in space.trials} == {"bf16", "int8", "fp32"}
    assert space == plan_space(profile(text))
    assert "12 of 26 configurations are tried" in space.notes[0]
    assert [one.trial_id for one in space.trials] == [f"t{at:03d}" for at in range(12)]


def test_fewer_trials_than_presets_keep_the_default() -> None:
    text = "presets: [{max_num_seqs: 64}, {max_num_seqs: 65}]\nbudget: {trials: 2}"
    assert [one.origin for one in plan_space(profile(text)).trials] == ["default", "preset"]


def test_a_grid_beyond_reason_is_refused_before_it_is_made() -> None:
    many = list(range(1, 400))
    text = f"search: {{max_num_seqs: {many}, batch_timeout_ms: {many}}}"
    with pytest.raises(ProfileError, match="159,201 combinations"):
        plan_space(profile(text))
