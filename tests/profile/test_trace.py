"""Traces: both public forms read as they are, their oddities included, and errors with lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstune.errors import ProfileError
from dstune.profile.load import dump_profile, load_profile, parse_profile, restore_profile
from dstune.profile.model import Profile
from dstune.profile.trace import TraceRow, clipped, read_trace

MOONCAKE = [
    {"timestamp": 27482, "input_length": 600, "output_length": 52, "hash_ids": [46, 47]},
    {"timestamp": 27482, "input_length": 1024, "output_length": 0, "hash_ids": [46, 48]},
    {"timestamp": 30482, "input_length": 1025, "output_length": 9, "hash_ids": [46, 48, 49]},
    {"timestamp": 28482, "input_length": 3, "output_length": 5},  # late in the file, unhashed
]
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109

2023-11-16 18:15:51.2224670,0,55
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("any")


def mooncake(tmp_path: Path, rows: object = None, name: str = "m.jsonl") -> Path:
    path = tmp_path / name
    rows = MOONCAKE if rows is None else rows
    assert isinstance(rows, list)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def profile(tmp_path: Path, arrivals: str = "", workload: str = "", rest: str = "") -> Profile:
    mooncake(tmp_path)
    path = tmp_path / "p.yaml"
    path.write_text(
        f"name: x\n{f'workload: {workload}' if workload else ''}\n"
        f"arrivals: {{kind: trace, path: m.jsonl{arrivals}}}\n{rest}"
    )
    return load_profile(path)


def test_mooncake_rows_in_order_of_time(tmp_path: Path) -> None:
    path = mooncake(tmp_path)
    rows = read_trace(path).rows
    assert [(one.offset_ns, one.prompt_tokens, one.output_tokens) for one in rows] == [
        (0, 600, 52), (0, 1024, 1), (1_000_000_000, 3, 5), (3_000_000_000, 1025, 9)
    ]  # fmt: skip
    assert [one.hash_ids for one in rows] == [(46, 47), (46, 48), None, (46, 48, 49)]
    assert [one.place for one in rows] == [f"{path}:{line}" for line in (1, 2, 4, 3)]


@pytest.mark.parametrize(
    ("text", "offsets_us"),
    [
        (AZURE, [0, 4314579, 4541877]),
        (AZURE.replace(",ContextTokens,G", ", contexttokens , G"), [0, 4314579, 4541877]),
        ("\ufeff" + AZURE.replace("\n", "\r\n"), [0, 4314579, 4541877]),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n"
         "2024-05-10 00:00:00.017335+00:00,2399,6\n", [0, 7405]),
        ("GeneratedTokens,TIMESTAMP,Region,ContextTokens\n7,2024-05-10 23:59:59,a,3\n"
         "7,2024-05-11 00:00:00,a,3\n", [0, 1_000_000]),
    ],
    ids=["2023", "spaces", "windows", "2024", "more columns"],
)  # fmt: skip
def test_azure_rows(tmp_path: Path, text: str, offsets_us: list[int]) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode())
    rows = read_trace(path).rows
    assert [one.offset_ns // 1000 for one in rows] == offsets_us
    if len(rows) == 3:
        assert [(one.prompt_tokens, one.output_tokens) for one in rows] == [
            (374, 44), (396, 109), (1, 55)
        ]  # fmt: skip
    assert {one.hash_ids for one in rows} == {None}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"t:1: neither a Mooncake trace"),
        ("x" * 200_000, "t:1: neither a Mooncake trace"),
        (AZURE + "x" * 200_000, "t:6: has fewer columns than the header"),
        ("\n\nhello, world\n", r"t:3: neither a Mooncake trace .* nor an Azure one"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "t: the trace has no rows"),
        (AZURE + "2023-11-16 18:15:51,1\n", "t:6: has fewer columns than the header"),
        (AZURE + "yesterday,1,2\n", "t:6: TIMESTAMP must be a date and a time, not 'yesterday'"),
        (AZURE + "2023-11-16,-1,2\n", "t:6: ContextTokens must be a number of tokens, not '-1'"),
        (AZURE + "2023-11-16,1,2.5\n", "t:6: GeneratedTokens must be a number of tokens, not '2"),
        ("{}\n", "t:1: input_length is missing"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1}\n{', "t:2: not a JSON object"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1}\n[]', "t:2: must be a JSON obje"),
        ('{"timestamp": -1, "input_length": 1, "output_length": 1}', "t:1: timestamp must be mill"),
        ('{"timestamp": 0, "input_length": true, "output_length": 1}', "t:1: input_length must be"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 99999999}', "t:1: output_length mu"),
        ('{"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [1]}',
         "t:1: 513 prompt tokens are 2 blocks of 512, but hash_ids names 1"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}',
         "t:1: hash_ids must be a list of whole numbers"),
    ],
)  # fmt: skip
def test_errors_name_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t"
    path.write_text(text)
    with pytest.raises(ProfileError, match=message):
        read_trace(path)


def test_bytes_that_are_no_text_name_their_line(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(AZURE.encode() + b"\xff\n")
    with pytest.raises(ProfileError, match="t:6: not UTF-8 text"):
        read_trace(path)


@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda one: ("{" + one).encode()))
def test_no_file_at_all_raises_anything_but_a_profile_error(folder: Path, data: bytes) -> None:
    path = folder / "any"
    path.write_bytes(data)
    try:
        read_trace(path)
    except ProfileError as error:
        assert str(path) in str(error)


def test_a_profile_takes_lengths_and_number_from_its_trace(tmp_path: Path) -> None:
    work = profile(tmp_path).workload
    assert work.num_requests == 4
    assert (work.prompt_tokens.min, work.prompt_tokens.longest) == (3, 1025)
    assert (work.output_tokens.min, work.output_tokens.longest) == (1, 52)
    assert work.longest_request_tokens == 1034, "of one row, not of the longest of both"


def test_speed_duration_and_number_choose_rows(tmp_path: Path) -> None:
    assert [one.offset_ns / 1e9 for one in profile(tmp_path, ", speed: 2").arrivals.rows()] == [
        0, 0, 0.5, 1.5
    ]  # fmt: skip
    assert profile(tmp_path, ", duration: 3s").workload.num_requests == 3
    assert profile(tmp_path, ", duration: 3s, speed: 2").workload.num_requests == 4
    one = profile(tmp_path, workload="{num_requests: 2}")
    assert (one.workload.num_requests, one.workload.prompt_tokens.longest) == (2, 1024)
    with pytest.raises(ProfileError, match=r"p\.yaml:2: workload.num_requests: is 5, but the trac"):
        profile(tmp_path, workload="{num_requests: 5}")


def test_what_a_trace_brings_cannot_be_given_beside_it(tmp_path: Path) -> None:
    for workload, key in [
        ("{prompt_tokens: 3}", "prompt_tokens: is brought by the trace"),
        ("{turns: 2}", "turns: the rows"),
        ("{shared_prefix_tokens: 2}", "shared_prefix_tokens: has no meaning"),
    ]:
        with pytest.raises(ProfileError, match=rf"p\.yaml:2: workload\.{key}"):
            profile(tmp_path, workload=workload)


def test_a_row_that_does_not_fit_is_named_and_clipping_is_a_choice(tmp_path: Path) -> None:
    rest = "knobs: {max_model_len: 1000}\n"
    with pytest.raises(ProfileError) as refused:
        profile(tmp_path, rest=rest)
    assert "1034 tokens" in str(refused.value) and "m.jsonl:3" in str(refused.value)
    assert "arrivals.clip_tokens" in str(refused.value)
    clipped_profile = profile(tmp_path, ", clip_tokens: 1000", rest=rest)
    assert clipped_profile.workload.longest_request_tokens == 1000
    assert clipped_profile.arrivals.describe() == "as in the trace m.jsonl, cut to 1000 tokens"


def test_clipping_keeps_the_output_and_the_beginning_of_the_prompt() -> None:
    row = TraceRow("t:1", 0, 1025, 9, (46, 48, 49))
    assert clipped(row, 1034) is row
    assert clipped(row, 521) == TraceRow("t:1", 0, 512, 9, (46,))
    assert clipped(row, 522) == TraceRow("t:1", 0, 513, 9, (46, 48))
    assert clipped(row, 5) == TraceRow("t:1", 0, 1, 4, (46,)), "the output leaves room for one"


def test_a_relative_path_is_sought_beside_the_profile_then_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, beside = tmp_path / "here", tmp_path / "beside"
    here.mkdir()
    beside.mkdir()
    monkeypatch.chdir(here)
    text = "name: x\narrivals: {kind: trace, path: m.jsonl}\n"
    (beside / "p.yaml").write_text(text)
    with pytest.raises(ProfileError) as missing:
        load_profile(beside / "p.yaml")
    message = str(missing.value)
    assert message.startswith(f"{beside}/p.yaml:2: arrivals.path: no such trace; looked for ")
    assert f"{beside}/m.jsonl and {here}/m.jsonl" in message
    mooncake(here, MOONCAKE[:1])
    assert load_profile(beside / "p.yaml").arrivals.path == str(here / "m.jsonl")
    mooncake(beside)
    assert load_profile(beside / "p.yaml").arrivals.path == str(beside / "m.jsonl")
    assert parse_profile("p.yaml", text).arrivals.path == str(here / "m.jsonl")


def test_a_run_goes_on_with_the_very_same_trace_or_not_at_all(tmp_path: Path) -> None:
    one = profile(tmp_path, ", duration: 3s, clip_tokens: 600")
    dumped = json.loads(json.dumps(dump_profile(one)))
    assert restore_profile(dumped) == one
    mooncake(tmp_path, MOONCAKE[:3])
    with pytest.raises(ProfileError, match=r"run\.json: arrivals\.path: .* has changed"):
        restore_profile(dumped)
