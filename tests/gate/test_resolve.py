"""What the command line asks for becomes two sides, an earlier version checked out if need be."""

from __future__ import annotations

from pathlib import Path

import pytest
from measured import ENVIRONMENT, PROFILE, Bank, profile

from dstune.errors import NotComparable, UsageError
from dstune.gate import resolve
from dstune.gate.resolve import Asked, candidate_of, resolved

HERE = Path(__file__).parents[2]
REVISION = "2222222222222222"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "chat.yaml"
    found.write_text(PROFILE)
    return found


def test_a_profile_and_a_changed_knob(path: Path, tmp_path: Path) -> None:
    asked = Asked(str(path), settings=("max_num_seqs=4",), overrides=("workload.seed=9",))
    with resolved(asked, tmp_path, ENVIRONMENT, pytest.fail) as (baseline, candidate):
        assert (baseline.knobs["max_num_seqs"], candidate.knobs["max_num_seqs"]) == (32, 4)
        assert baseline.profile == candidate.profile
        assert baseline.profile.workload.seed == 9
    side = candidate_of(asked, tmp_path)
    assert (side.name, side.knobs["max_num_seqs"]) == ("candidate", 4)


def test_two_runs_meet_the_same_prompts_whatever_their_seeds(tmp_path: Path) -> None:
    bank = Bank(tmp_path)
    before, after = bank.sweep(profile()), bank.sweep(profile("workload.seed=5", "search={}"))
    asked = Asked(str(before.path), str(after.path), settings=("block_size=32",))
    with resolved(asked, tmp_path, ENVIRONMENT, lambda _: None) as (baseline, candidate):
        assert baseline.profile.workload.seed == candidate.profile.workload.seed == 0


def test_servers_by_command_run_the_earlier_one_in_its_checkout(path: Path, tmp_path: Path) -> None:
    asked = Asked(str(path), baseline_revision="HEAD", candidate_command="serve {port}")
    with resolved(asked, tmp_path, ENVIRONMENT, pytest.fail) as (baseline, candidate):
        server = baseline.source.server
        assert server is not None and server.line == "serve {port}" and server.cwd is not None
        assert (server.cwd / "dstune").is_dir() and server.cwd != HERE
        assert candidate.source.server is not None and candidate.source.server.cwd is None
        assert baseline.source.describe() == "revision HEAD"


def test_the_engine_of_an_earlier_revision(path: Path, tmp_path: Path) -> None:
    asked = Asked(str(path), baseline_revision="HEAD")
    with resolved(asked, tmp_path, ENVIRONMENT, pytest.fail) as (baseline, candidate):
        program = baseline.source.program
        assert program.cwd is not None and (program.cwd / "dstune" / "server").is_dir()
        assert candidate.source.describe() == "this installation"
    assert not program.cwd.exists()


@pytest.mark.parametrize("is_known", [True, False])
def test_a_run_of_another_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """The recorded revision stands for HEAD where git has it; else the present code runs."""
    bank, told = Bank(tmp_path), []
    run = bank.sweep(profile(), git_revision="HEAD" if is_known else REVISION)
    asked = Asked(str(run.path), settings=() if is_known else ("block_size=32",))
    with resolved(asked, tmp_path, ENVIRONMENT, told.append) as (baseline, _):
        assert (baseline.source.revision is not None) is is_known
    said = (
        "as it was measured: revision HEAD" if is_known else "revision 222222222222, which is not"
    )
    assert any(said in one for one in told)


def test_the_same_code_and_configuration_has_nothing_to_compare(tmp_path: Path) -> None:
    run = Bank(tmp_path).sweep(profile())
    with (
        pytest.raises(UsageError, match="nothing differs"),
        resolved(Asked(str(run.path)), tmp_path, ENVIRONMENT, lambda _: None),
    ):
        pass


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        ({"candidate_url": "http://x", "settings": ("block_size=32",)}, UsageError, "--set turns"),
        ({"candidate_url": "x"}, UsageError, "'x' is no URL"),
        ({"candidate_url": "http://x", "candidate_command": "a {port}"}, UsageError, "one of the"),
        ({"baseline_url": "http://x", "baseline_revision": "HEAD"}, UsageError, "has no revision"),
        ({"candidate_command": "serve"}, UsageError, r"as \{port\}"),
        ({"settings": ("precision=int8",)}, NotComparable, "precision: bf16 and int8"),
        ({"baseline_revision": "no-such"}, UsageError, "has no revision no-such"),
    ],
)
def test_what_makes_no_comparison(
    path: Path, tmp_path: Path, asked: dict[str, object], error: type[Exception], says: str
) -> None:
    with (
        pytest.raises(error, match=says),
        resolved(Asked(str(path), **asked), tmp_path, ENVIRONMENT, lambda _: None),  # type: ignore[arg-type]
    ):
        pass


def test_profile_overrides_go_with_a_profile(tmp_path: Path) -> None:
    run = Bank(tmp_path).sweep(profile())
    with pytest.raises(UsageError, match="--profile-set goes with a profile"):
        resolve.origin(str(run.path), tmp_path, ("workload.seed=1",))
