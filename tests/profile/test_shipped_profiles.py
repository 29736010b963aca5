"""The profiles in the repository: read without errors, planned, and as the README says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dstune.profile.load import load_profile
from dstune.tune.space import plan_space

FOLDER = Path(__file__).parents[2] / "profiles"
NAMES = ("quickstart", "realtime-chat", "offline-batch", "recommendation")


def test_these_are_all() -> None:
    assert {one.stem for one in FOLDER.glob("*.yaml")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_opens_with_its_question_and_plans(name: str) -> None:
    path = FOLDER / f"{name}.yaml"
    first = path.read_text(encoding="utf-8").split("\n")[0]
    assert first.startswith("# ") and first.endswith("?")
    profile = load_profile(path)
    assert profile.name == name
    assert profile.budget.wall is not None  # the stated wall-clock budget
    space = plan_space(profile)
    assert space.trials[0].origin == "default" and space.skipped == ()
    origins = [one.origin for one in space.trials]
    assert origins.count("preset") == (0 if name == "quickstart" else 2)


def test_quickstart_ends_within_two_minutes() -> None:
    wall = load_profile(FOLDER / "quickstart.yaml").budget.wall
    assert wall is not None and wall < 120
